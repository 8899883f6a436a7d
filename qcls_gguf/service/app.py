"""All routes: those of the dialects, and those for operators (health, metrics, reload)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ..config.words import shown
from ..version import __version__
from .asking import Asker, json_bytes
from .backend import Backend
from .bodies import JSON, LINES, check_encoding, read_json, unless_gone
from .dialect import MODEL, Dialect, Events
from .dialects import DIALECTS
from .exchange import Exchange, ExchangeMiddleware
from .lifecycle import Lifecycle
from .metrics import CONTENT_TYPE, Metrics
from .openapi import description
from .refusal import RefusedError, openai_words, parse
from .settings import ServiceSettings

Answer = Callable[[Request], Awaitable[Response]]
_MODEL_PATH = "/v1/models/{name}"
_NO_PATH = (
    "there is no such path, and no path generates or embeds text: /v1/classify labels a text by the configured "
    "prompts, /v1/decisions by questions of the request, /v1/chat/completions by a schema; /docs lists the others"
)
_OPEN_PATHS = ("/", "/health", "/ready", "/docs", "/openapi.json")
"""Paths that need no key: they show nothing beyond the project's documentation."""
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
"""for pages: they load nothing from other hosts, and no other page may embed them"""
_BY_PATH = {path: [each for each in DIALECTS if each.path == path] for path in dict.fromkeys(d.path for d in DIALECTS)}


def build_app(lifecycle: Lifecycle, settings: ServiceSettings) -> ASGIApp:
    """The ASGI application of a service."""
    metrics = Metrics(lifecycle)
    asker = Asker(lifecycle, metrics, settings.limits)
    operations = _operations(lifecycle, metrics, may_reload=bool(settings.api_keys))
    described = description(list(_BY_PATH.values()), (each[:3] for each in operations))

    async def describe(_: Request) -> Response:
        return _json(described)

    answers: dict[str, tuple[str, Answer]] = {
        **{path: ("POST", _dialects(spoken, asker)) for path, spoken in _BY_PATH.items()},
        **{path: (method.upper(), answer) for method, path, _, answer in operations},
        **{"/": ("GET", _page("page.html")), "/docs": ("GET", _page("docs.html")), "/openapi.json": ("GET", describe)},
    }

    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path.startswith("/v1/models/"):
            path = _MODEL_PATH
        if path not in answers:
            raise RefusedError(404, "unknown path", _NO_PATH)
        Exchange.of(scope).route = path
        method, answer = answers[path]
        if scope["method"] not in (method, "HEAD" if method == "GET" else ""):
            raise RefusedError(405, "method", f"this path takes {method}", allow=method)
        response = await answer(Request(scope, receive))
        await response(scope, receive, send)

    return ExchangeMiddleware(route, metrics, settings, open_paths=_OPEN_PATHS, refusal=_response)


def _dialects(dialects: Sequence[Dialect], asker: Asker) -> Answer:
    """The handler of a path's requests. dialects: those of this path."""

    async def answer(request: Request) -> Response:
        exchange = Exchange.of(request.scope)
        exchange.set_deadline(asker.limits)
        check_encoding(exchange)
        own = dialects[-1]
        if own.line is not None and exchange.content_type in LINES:
            _ = asker.lifecycle.backend  # before the answer begins
            return _Lines(asker.lines(own, request), media_type=LINES[0])
        body = await read_json(request, asker.limits)
        backend = asker.lifecycle.backend
        dialect = next(each for each in dialects if each.claims(body))
        parameters = request.query_params if dialect.parameters else {}
        asked = dialect.ask(parse(dialect.request, body), backend.context(exchange.request_id, parameters))
        found = await unless_gone(asker.answer(asked, backend, exchange), request)
        return _events(found) if isinstance(found, Events) else _json(found)

    return answer


def _events(events: Events) -> Response:
    """Events of a stream, in one piece: the answer is whole before the first of them."""
    lines = [b"data: " + json_bytes(body) for body in events.bodies]
    return Response(b"\n\n".join([*lines, b"data: [DONE]", b""]), media_type="text/event-stream")


class _Lines(StreamingResponse):
    """Sends lines when they are ready. Unlike its base class it does not read from the client, who still sends."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.stream_response(send)


def _page(name: str) -> Answer:
    page = (Path(__file__).parent / name).read_bytes()

    async def answer(_: Request) -> Response:
        return Response(page, headers={"content-type": "text/html; charset=utf-8", "content-security-policy": _POLICY})

    return answer


def _response(refusal: RefusedError, scope: Scope) -> Response:
    """The refusal in the words of the path's API."""
    words = _BY_PATH[scope["path"]][-1].words if scope["path"] in _BY_PATH else openai_words
    close = {"connection": "close"} if Exchange.of(scope).closes else {}
    return Response(json_bytes(words(refusal)), refusal.status, refusal.headers | close, media_type=JSON)


# --- operations ------------------------------------------------------------------------------------------------------


def _operations(lifecycle: Lifecycle, metrics: Metrics, *, may_reload: bool) -> list[tuple[str, str, str, Answer]]:
    """(method, path, summary, handler) of each; may_reload: whether clients have API keys."""

    async def health(_: Request) -> Response:
        return _json({"status": lifecycle.state.value, "version": __version__})

    async def ready(request: Request) -> Response:
        _ = lifecycle.backend
        return await health(request)

    async def counts(_: Request) -> Response:
        return Response(metrics.text(), headers={"content-type": CONTENT_TYPE})

    async def models(_: Request) -> Response:
        return _json({"object": "list", **_models(lifecycle.backend)})

    async def model(request: Request) -> Response:
        name = request.scope["path"].removeprefix(_MODEL_PATH.removesuffix("{name}"))
        known = {each["id"]: each for each in _models(lifecycle.backend)["data"]}
        if name not in known:
            what = f"there is no model {shown(name)}: this service has {', '.join(map(shown, known))}"
            raise RefusedError(404, "unknown prompt", what)
        return _json(known[name])

    async def reload(_: Request) -> Response:
        if not may_reload:
            what = "only a client with an API key may reload, and this service has none: give it one, or send SIGHUP"
            raise RefusedError(403, "key", what)
        backend = await lifecycle.reload()
        names, file = list(backend.prompts), backend.classifier.model.path
        return _json({"status": "reloaded", "prompts": names, "model": file})

    return [
        ("get", "/health", "Whether the process is alive", health),
        ("get", "/ready", "Whether requests are answered", ready),
        ("get", "/metrics", "Counts for Prometheus", counts),
        ("get", "/v1/models", "The configured prompts, as models", models),
        ("get", _MODEL_PATH, "A prompt, as a model", model),
        ("post", "/admin/reload", "Read the configuration anew", reload),
    ]


def _json(body: object) -> Response:
    return Response(json_bytes(body), media_type=JSON)


def _models(backend: Backend) -> dict[str, list[dict[str, object]]]:
    """The configured prompts as models, in OpenAI's words (`data`) and in TypeSafe's (`models`)."""
    info, created = backend.classifier.model, backend.created
    about = f"{info.description}, {info.quantization}"
    named = {MODEL: f"all prompts by {about}"} | {
        f"{MODEL}/{name}": f"one of {len(prompt.labels)} labels by {about}" for name, prompt in backend.prompts.items()
    }
    date = datetime.fromtimestamp(created, UTC).date().isoformat()
    return {
        "data": [{"id": name, "object": "model", "created": created, "owned_by": "qcls-gguf"} for name in named],
        "models": [{"name": name, "description": what, "release_date": date} for name, what in named.items()],
    }
