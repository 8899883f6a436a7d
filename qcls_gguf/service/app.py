"""All routes: those of the dialects, and those for operators (health, metrics)."""

import asyncio
import hashlib
import hmac
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..config.words import instead_of
from ..errors import QclsError
from ..version import __version__
from .asking import answer, json_bytes
from .dialect import MODEL, Texts
from .dialects import DIALECTS
from .exchange import JSON, Exchange
from .lifecycle import Lifecycle, log
from .metrics import CONTENT_TYPE, Metrics
from .refusal import RefusedError, openai_words, parse, refusal_of

_MOST_DROPPED_BYTES = 64 << 20
"""of the body of a request that is refused"""
_DROP_S, _DROP_IDLE_S = 10.0, 1.0
"""for them to come, and for the next of them"""
_NO_PATH = (
    "there is no such path, and no path generates or embeds text: /v1/classify labels a text by the configured "
    "prompts, /v1/decisions by questions of the request, /v1/chat/completions by a schema"
)
_OPEN_PATHS = ("/", "/health", "/ready")
"""Paths that need no key: they show nothing beyond the project's documentation."""
_PAGE = {
    "content-type": "text/html; charset=utf-8",
    # pages load nothing from other hosts, and no other page may embed them
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
}


class App:
    """The ASGI application of a service: finds the handler of a request, and turns every exception into an answer."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._metrics = Metrics(lifecycle)
        self._digests = [hashlib.sha256(key.encode()).digest() for key in lifecycle.settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """For the server."""
        exchange = Exchange(scope, receive, self._lifecycle, self._metrics)
        status = 499  # the client has left: as nginx logs it
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
            if self._lifecycle.settings.logs_requests:
                exchange.log(status)

    async def _response(self, exchange: Exchange) -> Response:
        """The answer, or a refusal in the words of the path's API. Raises ClientDisconnect."""
        path = exchange.scope["path"]
        try:
            self._check_key(exchange)
            if path not in _ROUTES:
                instead = instead_of("serve", path)
                raise RefusedError(404, "unknown path", f"{path} was removed: {instead}" if instead else _NO_PATH)
            exchange.route = path
            method, handler = _ROUTES[path]
            if exchange.method not in (method, "HEAD" if method == "GET" else ""):
                raise RefusedError(405, "method", f"this path takes {method}", headers={"allow": method})
            return await handler(exchange)
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
        words = DIALECTS[path].words if path in DIALECTS else openai_words
        headers = refusal.headers | ({} if stays else {"connection": "close"})
        return Response(json_bytes(words(refusal)), refusal.status, headers, media_type=JSON)

    def _check_key(self, exchange: Exchange) -> None:
        """Raise RefusedError (401) for a request without a key, unless its path is open."""
        if not self._digests or exchange.scope["path"] in _OPEN_PATHS:
            return
        scheme, _, bearer = exchange.header(b"authorization").partition(" ")
        given = bearer.strip() if scheme.lower() == "bearer" else exchange.header(b"x-api-key")
        digest = hashlib.sha256(given.encode("utf-8", "surrogateescape")).digest()
        if not any(hmac.compare_digest(digest, known) for known in self._digests):
            what = "an API key is needed: send Authorization: Bearer KEY, or X-API-Key: KEY"
            what = "this API key is not known" if given else what
            raise RefusedError(401, "key", what, headers={"www-authenticate": "Bearer"})


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


def _json(body: object) -> Response:
    return Response(json_bytes(body), media_type=JSON)


async def _asked(exchange: Exchange) -> Response:
    """The answer of the path's dialect."""
    dialect = DIALECTS[exchange.route]
    body = await exchange.read_json()
    exchange.backend = exchange.lifecycle.backend
    asked = dialect.ask(parse(dialect.request, body), exchange)
    content = await exchange.unless_gone(answer(asked, exchange))
    if isinstance(asked, Texts) or not asked.is_stream:
        return _json(content)
    assert isinstance(content, list)
    events = [b"data: " + json_bytes(event) for event in content]  # in one piece: the answer is whole before the first
    return Response(b"\n\n".join([*events, b"data: [DONE]", b""]), media_type="text/event-stream")


# --- operations ------------------------------------------------------------------------------------------------------


async def _health(exchange: Exchange) -> Response:
    if exchange.route == "/ready":
        _ = exchange.lifecycle.backend
    return _json({"status": exchange.lifecycle.state, "version": __version__})


async def _counts(exchange: Exchange) -> Response:
    return Response(exchange.metrics.text(), headers={"content-type": CONTENT_TYPE})


async def _models(exchange: Exchange) -> Response:
    """The configured prompts as models, in OpenAI's words (`data`) and in TypeSafe's (`models`)."""
    backend = exchange.lifecycle.backend
    info = backend.classifier.model
    about = f"{info.description}, {info.quantization}"
    models = {MODEL: f"all prompts by {about}"}
    for name, prompt in backend.prompts.items():
        models[f"{MODEL}/{name}"] = f"one of {len(prompt.labels)} labels by {about}"
    head = {"object": "model", "created": exchange.lifecycle.created, "owned_by": "qcls-gguf"}
    date = datetime.fromtimestamp(exchange.lifecycle.created, UTC).date().isoformat()
    described = [{"name": name, "description": what, "release_date": date} for name, what in models.items()]
    return _json({"object": "list", "data": [{"id": name, **head} for name in models], "models": described})


async def _page(_: Exchange) -> Response:
    return Response((Path(__file__).parent / "page.html").read_bytes(), headers=_PAGE)


_ROUTES: dict[str, tuple[str, Callable[[Exchange], Awaitable[Response]]]] = {
    **dict.fromkeys(DIALECTS, ("POST", _asked)),
    "/health": ("GET", _health),
    "/ready": ("GET", _health),
    "/metrics": ("GET", _counts),
    "/v1/models": ("GET", _models),
    "/": ("GET", _page),
}
"""method and handler by path"""
