"""All routes: those of the dialects, and those for operators (health, metrics, reload)."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ..config.words import shown
from ..errors import QclsError
from ..version import __version__
from .asking import Asker, json_bytes
from .backend import Backend
from .dialect import MODEL, Dialect, Events
from .dialects import DIALECTS
from .exchange import JSON, LINES, Exchange, log
from .lifecycle import Lifecycle
from .metrics import CONTENT_TYPE, Metrics
from .openapi import description
from .refusal import RefusedError, openai_words, parse, refusal_of

Answer = Callable[[Exchange], Awaitable[Response]]
_GONE = 499  # as nginx logs a client that left
_MOST_DROPPED_BYTES = 64 << 20
"""of the body of a request that is refused"""
_DROP_S, _DROP_IDLE_S = 10.0, 1.0
"""for them to come, and for the next of them"""
_MODELS = "/v1/models/"
_MODEL_PATH = _MODELS + "{name}"
_NO_PATH = (
    "there is no such path, and no path generates or embeds text: /v1/classify labels a text by the configured "
    "prompts, /v1/decisions by questions of the request, /v1/chat/completions by a schema; /docs lists the others"
)
_GONE_PATHS = {
    "/classify": "/classify was removed: use /predict, or /v1/classify for all prompts",
    "/v1/completions": "/v1/completions was removed: use /v1/chat/completions, which chooses one of given answers",
}
_OPEN_PATHS = ("/", "/health", "/ready", "/docs", "/openapi.json")
"""Paths that need no key: they show nothing beyond the project's documentation."""
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
"""for pages: they load nothing from other hosts, and no other page may embed them"""
_BY_PATH = {path: [each for each in DIALECTS if each.path == path] for path in dict.fromkeys(d.path for d in DIALECTS)}


class App:
    """The ASGI application of a service: finds the handler of a request, and turns every exception into an answer."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._metrics = Metrics(lifecycle)
        self._settings = lifecycle.settings
        self._digests = [hashlib.sha256(key.encode()).digest() for key in self._settings.api_keys]
        asker = Asker(lifecycle, self._metrics)
        operations = _operations(lifecycle, self._metrics)
        described = json_bytes(description(list(_BY_PATH.values()), (each[:3] for each in operations)))
        page = {"content-type": "text/html; charset=utf-8", "content-security-policy": _POLICY}
        self._answers: dict[str, tuple[str, Answer]] = {  # the method and the handler of each path
            **{path: ("POST", _dialects(dialects, asker)) for path, dialects in _BY_PATH.items()},
            **{path: (method.upper(), answer) for method, path, _, answer in operations},
            "/": ("GET", _fixed(_file("page.html"), page)),
            "/docs": ("GET", _fixed(_file("docs.html"), page)),
            "/openapi.json": ("GET", _fixed(described, {"content-type": JSON})),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """For the server."""
        exchange = Exchange(scope, receive, self._settings.limits)
        status = _GONE
        self._metrics.in_flight.inc()
        try:
            response = await self._response(exchange)
            response.raw_headers += exchange.answer_headers()
            status = response.status_code
            await response(scope, receive, send)
        except ClientDisconnect:
            self._metrics.gone.inc()
        finally:
            self._metrics.in_flight.dec()
            self._metrics.answered(exchange.route, status, exchange.total_ms / 1e3, exchange.reason)
            if self._settings.logs_requests:
                exchange.log(status)

    async def _response(self, exchange: Exchange) -> Response:
        """The answer, or a refusal in the words of the path's API. Raises ClientDisconnect."""
        path = exchange.scope["path"]
        try:
            self._check_key(exchange)
            return await self._answer(exchange)(exchange)
        except ClientDisconnect:
            raise
        except (RefusedError, QclsError) as e:
            refusal = refusal_of(e)
        except Exception:
            log.exception("request %s failed", exchange.request_id)
            what = f"an error inside the service: its log has it under {exchange.request_id}"
            refusal = RefusedError(500, "failed", what)
        exchange.reason = refusal.reason
        may_stay = refusal.status != 408 and not exchange.header(b"expect")
        stays = exchange.is_read or (may_stay and await _dropped(exchange))
        words = _BY_PATH[path][-1].words if path in _BY_PATH else openai_words
        headers = refusal.headers | ({} if stays else {"connection": "close"})
        return Response(json_bytes(words(refusal)), refusal.status, headers, media_type=JSON)

    def _answer(self, exchange: Exchange) -> Answer:
        """The handler of a request. Raises RefusedError: 404 or 405."""
        path = exchange.scope["path"]
        path = _MODEL_PATH if path.startswith(_MODELS) else path
        if path not in self._answers:
            raise RefusedError(404, "unknown path", _GONE_PATHS.get(path, _NO_PATH))
        exchange.route = path
        method, answer = self._answers[path]
        if exchange.method not in (method, "HEAD" if method == "GET" else ""):
            raise RefusedError(405, "method", f"this path takes {method}", allow=method)
        return answer

    def _check_key(self, exchange: Exchange) -> None:
        """Raise RefusedError (401) for a request without a key, unless its path is open."""
        if not self._digests or exchange.scope["path"] in _OPEN_PATHS:
            return
        scheme, _, bearer = exchange.header(b"authorization").partition(" ")
        given = bearer.strip() if scheme.lower() == "bearer" else exchange.header(b"x-api-key")
        digest = hashlib.sha256(given.encode("utf-8", "surrogateescape")).digest()
        if not any(hmac.compare_digest(digest, known) for known in self._digests):
            what = "an API key is needed: send Authorization: Bearer KEY, or X-API-Key: KEY"
            raise RefusedError(401, "key", "this API key is not known" if given else what)


async def _dropped(exchange: Exchange) -> bool:
    """Read the rest of a body, as many clients send all of it before they read an answer; returns whether it ended."""
    n = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(_DROP_S):
            while n < _MOST_DROPPED_BYTES:
                async with asyncio.timeout(_DROP_IDLE_S):
                    message = await exchange.receive()
                n += len(message.get("body", b""))
                if exchange.is_read:
                    return True
    return False


def _dialects(dialects: list[Dialect], asker: Asker) -> Answer:
    """The handler of a path's requests. dialects: those of this path."""

    async def answer(exchange: Exchange) -> Response:
        exchange.check_headers()
        own = dialects[-1]
        if own.line is not None and exchange.content_type in LINES:
            _ = asker.lifecycle.backend  # before the answer begins
            return _Lines(asker.lines(own, exchange), media_type=LINES[0])
        body = await exchange.read_json()
        exchange.backend = asker.lifecycle.backend
        dialect = next(each for each in dialects if each.claims(body))
        asked = dialect.ask(parse(dialect.request, body), exchange.context)
        found = await exchange.unless_gone(asker.answer(asked, exchange))
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


def _json(body: object) -> Response:
    return Response(json_bytes(body), media_type=JSON)


def _fixed(content: bytes, headers: Mapping[str, str]) -> Answer:
    """The handler that always answers the same."""

    async def answer(_: Exchange) -> Response:
        return Response(content, headers=headers)

    return answer


def _file(name: str) -> bytes:
    return (Path(__file__).parent / name).read_bytes()


# --- operations ------------------------------------------------------------------------------------------------------


def _operations(lifecycle: Lifecycle, metrics: Metrics) -> list[tuple[str, str, str, Answer]]:
    """(method, path, summary, handler) of each."""

    async def health(_: Exchange) -> Response:
        return _json({"status": lifecycle.state, "version": __version__})

    async def ready(exchange: Exchange) -> Response:
        _ = lifecycle.backend
        return await health(exchange)

    async def counts(_: Exchange) -> Response:
        return Response(metrics.text(), headers={"content-type": CONTENT_TYPE})

    async def models(_: Exchange) -> Response:
        return _json({"object": "list", **_models(lifecycle.backend)})

    async def model(exchange: Exchange) -> Response:
        name = exchange.scope["path"].removeprefix(_MODELS)
        known = {each["id"]: each for each in _models(lifecycle.backend)["data"]}
        if name not in known:
            what = f"there is no model {shown(name)}: this service has {', '.join(map(shown, known))}"
            raise RefusedError(404, "unknown prompt", what)
        return _json(known[name])

    async def reload(_: Exchange) -> Response:
        if not lifecycle.settings.api_keys:
            what = "only a client with an API key may reload, and this service has none: give it one, or send SIGHUP"
            raise RefusedError(403, "key", what)
        backend = await lifecycle.reload()
        names, file = list(backend.asker.prompts), backend.classifier.model.path
        return _json({"status": "reloaded", "prompts": names, "model": file})

    return [
        ("get", "/health", "Whether the process is alive", health),
        ("get", "/ready", "Whether requests are answered", ready),
        ("get", "/metrics", "Counts for Prometheus", counts),
        ("get", "/v1/models", "The configured prompts, as models", models),
        ("get", _MODEL_PATH, "A prompt, as a model", model),
        ("post", "/admin/reload", "Read the configuration anew", reload),
    ]


def _models(backend: Backend) -> dict[str, list[dict[str, object]]]:
    """The configured prompts as models, in OpenAI's words (`data`) and in TypeSafe's (`models`)."""
    info, created = backend.classifier.model, backend.created
    about = f"{info.description}, {info.quantization}"
    named = {MODEL: f"all prompts by {about}"}
    for name, prompt in backend.asker.prompts.items():
        named[f"{MODEL}/{name}"] = f"one of {len(prompt.labels)} labels by {about}"
    date = datetime.fromtimestamp(created, UTC).date().isoformat()
    return {
        "data": [{"id": name, "object": "model", "created": created, "owned_by": "qcls-gguf"} for name in named],
        "models": [{"name": name, "description": what, "release_date": date} for name, what in named.items()],
    }
