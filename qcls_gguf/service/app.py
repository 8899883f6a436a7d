"""All routes: those of the dialects, and those for operations: is it alive, what does it count, read it anew."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from ..config.words import shown
from ..version import __version__
from .asking import Asker, json_bytes
from .backend import Backend
from .bodies import LINES, check_encoding, read_json, unless_gone
from .dialect import MODEL, Dialect, no_images
from .dialects import DIALECTS
from .exchange import Exchange, ExchangeMiddleware, Scope
from .lifecycle import Lifecycle
from .metrics import CONTENT_TYPE, Metrics
from .openapi import Operation, description, description_page
from .refusal import ErrorAnswer, RefusedError, openai_words, parse
from .settings import RequestLimits, ServiceSettings

Endpoint = Callable[[Request], Awaitable[Response]]
PAGE, DOCS, DESCRIPTION = "/", "/docs", "/openapi.json"
HEALTH, READY, MODELS = "/health", "/ready", "/v1/models"
_OPEN_PATHS = (PAGE, HEALTH, READY, DOCS, DESCRIPTION)
"""Paths that need no key: they tell nothing that the project's pages do not."""
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
"""for pages: nothing comes from elsewhere, and no other page shows them within itself"""
_EXPOSED = ("x-request-id", "server-timing", "retry-after", "retry-after-ms")
_ERRORS = (400, 401, 404, 408, 413, 415, 422, 500, 503, 504)
_BY_PATH = {path: [each for each in DIALECTS if each.path == path] for path in dict.fromkeys(d.path for d in DIALECTS)}


def build_app(lifecycle: Lifecycle, settings: ServiceSettings) -> Starlette:
    """The ASGI application of a service."""
    metrics = Metrics(lifecycle)
    asker = Asker(lifecycle.admission, metrics, settings.limits)
    documented = [
        *((_operation(each), _endpoint(each, lifecycle, asker, settings.limits)) for each in _BY_PATH.values()),
        *_operations(lifecycle, metrics, may_reload=bool(settings.api_keys)),
    ]
    described = description(operation for operation, _ in documented)
    routes = [
        *(Route(each.path.replace("}", ":path}"), answer, methods=[each.method]) for each, answer in documented),
        Route(PAGE, _page((Path(__file__).parent / "page.html").read_bytes())),
        Route(DOCS, _page(description_page(described))),
        Route(DESCRIPTION, _page(json_bytes(described), "application/json")),
    ]
    around = Middleware(ExchangeMiddleware, metrics, settings, open_paths=_OPEN_PATHS, refusal=_response)
    cors = Middleware(
        CORSMiddleware,
        allow_origins=settings.cors_origins,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=_EXPOSED,
    )
    app = Starlette(
        routes=routes,
        middleware=[cors, around] if settings.cors_origins else [around],
        exception_handlers={HTTPException: _raise_refused},
    )
    app.router.redirect_slashes = False
    return app


def _endpoint(dialects: Sequence[Dialect], lifecycle: Lifecycle, asker: Asker, limits: RequestLimits) -> Endpoint:
    """What answers the requests of a path. dialects: those that are spoken there."""

    async def endpoint(request: Request) -> Response:
        exchange = Exchange.of(request.scope)
        exchange.set_deadline(limits)
        check_encoding(exchange)
        own = dialects[-1]
        if own.line is not None and exchange.content_type in LINES:
            _ = lifecycle.backend  # before the answer begins
            return _Lines(asker.lines(own, lifecycle, request), media_type=LINES[0])
        if own.files is not None and exchange.content_type.startswith("multipart/"):
            raise no_images(own.files)
        body = await read_json(request, limits)
        backend = lifecycle.backend
        dialect = next(each for each in dialects if each.claims(body))
        asked = dialect.ask(parse(dialect.request, body), backend.context(exchange.request_id, request.query_params))
        answer = await unless_gone(asker.answer(asked, backend, exchange), request)
        return Response(json_bytes(answer), media_type="application/json")

    return endpoint


class _Lines(StreamingResponse):
    """Lines as they are ready. Unlike its base it does not read from the client, whose lines are still coming."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.stream_response(send)


def _operation(dialects: Sequence[Dialect]) -> Operation:
    own = dialects[-1]
    return Operation(
        path=own.path,
        method="post",
        summary=own.summary,
        answer=own.answer,
        errors=_ERRORS,
        error=(ErrorAnswer,) if own.words is openai_words else (),
        requests=[each.request for each in reversed(dialects)],
        more_kinds=LINES[:1] if own.line is not None else (),
        parameters=own.parameters,
    )


def _page(body: bytes, kind: str = "text/html; charset=utf-8") -> Endpoint:
    async def endpoint(_: Request) -> Response:
        return Response(body, headers={"content-type": kind, "content-security-policy": _POLICY})

    return endpoint


def _response(refusal: RefusedError, scope: Scope) -> Response:
    """The refusal in the words of the path's API."""
    words = _BY_PATH[scope["path"]][-1].words if scope["path"] in _BY_PATH else openai_words
    return Response(json_bytes(words(refusal)), refusal.status, refusal.headers, media_type="application/json")


async def _raise_refused(_: Request, error: Exception) -> Response:
    """Raise what Starlette's router refuses as a RefusedError."""
    assert isinstance(error, HTTPException)
    match error.status_code:
        case 404:
            what = (
                "there is no such path, and no path generates or embeds text: /v1/classify labels a text by the "
                "configured prompts, /v1/decisions by questions of the request; /docs lists the others"
            )
            raise RefusedError(404, "unknown path", what)
        case 405:
            allowed = (error.headers or {}).get("Allow", "")
            raise RefusedError(405, "method", f"this path takes {allowed}", allow=allowed)
        case status:
            raise RefusedError(status, "invalid", str(error.detail))


# --- operations ------------------------------------------------------------------------------------------------------


class Health(BaseModel):
    """The state of the service."""

    status: str
    """loading, ready or draining"""
    version: str
    """of qcls-gguf"""


class OpenAIModel(BaseModel):
    """A model in OpenAI's words."""

    id: str
    """`default`, or `default/<prompt>`"""
    object: str
    created: int
    owned_by: str


class TypeSafeModel(BaseModel):
    """A model in TypeSafe's words."""

    name: str
    description: str
    release_date: str


class Models(BaseModel):
    """The configured prompts as models, in OpenAI's words (`data`) and in TypeSafe's (`models`)."""

    object: str
    data: list[OpenAIModel]
    models: list[TypeSafeModel]


class Reloaded(BaseModel):
    """What answers after a reload."""

    status: str
    prompts: list[str]
    """names of the configured prompts"""
    model: str
    """the model file"""


def _operations(lifecycle: Lifecycle, metrics: Metrics, *, may_reload: bool) -> list[tuple[Operation, Endpoint]]:
    """The routes with what answers them; may_reload: whether clients are known by their keys."""

    async def health(_: Request) -> Response:
        return _json(Health(status=lifecycle.state.value, version=__version__))

    async def ready(request: Request) -> Response:
        _ = lifecycle.backend
        return await health(request)

    async def counts(_: Request) -> Response:
        return Response(metrics.text(), headers={"content-type": CONTENT_TYPE})

    async def models(_: Request) -> Response:
        return _json(_models(lifecycle.backend))

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        known = {each.id: each for each in _models(lifecycle.backend).data}
        if name not in known:
            what = f"there is no model {shown(name)}: this service has {', '.join(map(shown, known))}"
            raise RefusedError(404, "unknown prompt", what)
        return _json(known[name])

    async def reload(_: Request) -> Response:
        if not may_reload:
            what = "only a client with an API key may reload, and this service has none: give it one, or send SIGHUP"
            raise RefusedError(403, "key", what)
        backend = await lifecycle.reload()
        file = backend.classifier.model.path
        return _json(Reloaded(status="reloaded", prompts=list(backend.prompts), model=file))

    rows: list[tuple[str, str, str, type[BaseModel] | None, tuple[int, ...], Endpoint]] = [
        ("get", HEALTH, "Whether the process is alive", Health, (), health),
        ("get", READY, "Whether requests are answered", Health, (503,), ready),
        ("get", "/metrics", "Counts for Prometheus", None, (401,), counts),
        ("get", MODELS, "The configured prompts, as models", Models, (401, 503), models),
        ("get", f"{MODELS}/{{name}}", "A prompt, as a model", OpenAIModel, (401, 404, 503), model),
        ("post", "/admin/reload", "Read the configuration anew", Reloaded, (401, 403, 409, 422, 503), reload),
    ]
    return [
        (Operation(path=path, method=method, summary=summary, answer=(answer,) if answer else (), errors=errors,
                   kind="application/json" if answer else "text/plain"), endpoint)
        for method, path, summary, answer, errors, endpoint in rows
    ]  # fmt: skip


def _json(model: BaseModel) -> Response:
    return Response(model.model_dump_json(), media_type="application/json")


def _models(backend: Backend) -> Models:
    info = backend.classifier.model
    about = f"{info.description}, {info.quantization}"
    named = {MODEL: f"all prompts by {about}"} | {
        f"{MODEL}/{name}": f"one of {len(prompt.labels)} labels by {about}" for name, prompt in backend.prompts.items()
    }
    created = backend.created
    date = datetime.fromtimestamp(created, UTC).date().isoformat()
    return Models(
        object="list",
        data=[OpenAIModel(id=name, object="model", created=created, owned_by="qcls-gguf") for name in named],
        models=[TypeSafeModel(name=name, description=what, release_date=date) for name, what in named.items()],
    )
