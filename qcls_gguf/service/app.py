"""All routes: those of the dialects and those for operations, inside the middleware that every request passes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from .asking import Asker, json_bytes
from .bodies import LINES, read_json, unless_gone
from .dialect import Dialect, no_images
from .dialects import DIALECTS
from .exchange import Exchange, Scope
from .lifecycle import Lifecycle
from .metrics import Metrics
from .middleware import ExchangeMiddleware
from .mistakes import parse
from .openapi import Operation, description, description_page
from .operations import HEALTH, READY, Endpoint, operations
from .refusal import ErrorAnswer, RefusedError, openai_words
from .settings import RequestLimits, ServiceSettings

PAGE, DOCS, DESCRIPTION = "/", "/docs", "/openapi.json"
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
        *operations(lifecycle, metrics, may_reload=bool(settings.api_keys)),
    ]
    described = description(operation for operation, _ in documented)
    routes = [
        *(Route(each.path.replace("}", ":path}"), answer, methods=[each.method]) for each, answer in documented),
        Route(PAGE, _page((Path(__file__).parent / "page.html").read_bytes())),
        Route(DOCS, _page(description_page(described))),
        Route(DESCRIPTION, _page(json_bytes(described), "application/json")),
    ]
    around = Middleware(ExchangeMiddleware, metrics, settings, open_paths=_OPEN_PATHS, refuse=_response)
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
        exception_handlers={RefusedError: _refused, HTTPException: _refused},
    )
    app.router.redirect_slashes = False
    return app


def _endpoint(dialects: Sequence[Dialect], lifecycle: Lifecycle, asker: Asker, limits: RequestLimits) -> Endpoint:
    """What answers the requests of a path. dialects: those that are spoken there."""

    async def endpoint(request: Request) -> Response:
        exchange = Exchange.of(request.scope)
        exchange.set_deadline(limits)
        own = dialects[-1]
        if own.line is not None and exchange.content_type in LINES:
            _ = lifecycle.backend  # before the answer begins
            return _Lines(asker.lines(own, lifecycle, exchange, request.receive), media_type=LINES[0])
        if own.files is not None and exchange.content_type.startswith("multipart/"):
            raise no_images(own.files)
        body = await read_json(exchange, request.receive, limits)
        backend = lifecycle.backend
        dialect = next(each for each in dialects if each.claims(body))
        asked = dialect.ask(parse(dialect.request, body), backend.context(exchange.request_id, request.query_params))
        answer = await unless_gone(asker.answer(asked, backend, exchange), request.receive)
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
        error=ErrorAnswer if own.words is openai_words else None,
        requests=[each.request for each in reversed(dialects)],
        more_kinds=LINES[:1] if own.line is not None else (),
        parameters=own.parameters,
    )


def _page(body: bytes, kind: str = "text/html; charset=utf-8") -> Endpoint:
    async def endpoint(_: Request) -> Response:
        return Response(body, headers={"content-type": kind, "content-security-policy": _POLICY})

    return endpoint


async def _refused(request: Request, error: Exception) -> Response:
    return _response(_refusal(error), request.scope)


def _response(refusal: RefusedError, scope: Scope) -> Response:
    """The refusal in the words of the path's API."""
    Exchange.of(scope).reason = refusal.reason
    words = _BY_PATH[scope["path"]][-1].words if scope["path"] in _BY_PATH else openai_words
    headers = refusal.headers
    if scope["method"] == "CONNECT":  # what follows is not HTTP
        headers["connection"] = "close"
    return Response(json_bytes(words(refusal)), refusal.status, headers, media_type="application/json")


def _refusal(error: Exception) -> RefusedError:
    if isinstance(error, RefusedError):
        return error
    assert isinstance(error, HTTPException)
    match error.status_code:
        case 404:
            what = (
                "there is no such path, and no path generates or embeds text: /v1/classify labels a text by the "
                "configured prompts, /v1/decisions by questions of the request; /docs lists the others"
            )
            return RefusedError(404, "unknown path", what)
        case 405:
            allowed = (error.headers or {}).get("Allow", "")
            return RefusedError(405, "method", f"this path takes {allowed}", allow=allowed)
        case status:
            return RefusedError(status, "invalid", str(error.detail))
