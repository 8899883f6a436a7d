"""What every request passes: who may ask, request ids, headers of the answer, the log, the metrics, spans."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from .bodies import Receive
from .exchange import Exchange, Scope, log
from .metrics import Metrics
from .refusal import ClientGoneError, RefusedError
from .settings import ServiceSettings

if TYPE_CHECKING:
    from opentelemetry.trace import Span

try:
    from opentelemetry import propagate, trace
except ImportError:
    has_tracing = False
else:
    has_tracing = True

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_GONE = 499  # as nginx logs a client that left


class ExchangeMiddleware:
    """An ASGI application around another one. Whatever that raises, it answers."""

    def __init__(
        self,
        app: App,
        metrics: Metrics,
        settings: ServiceSettings,
        *,
        open_paths: Collection[str],
        refuse: Callable[[RefusedError, Scope], Response],
    ) -> None:
        """open_paths: which need no key; refuse(refusal, scope): the answer that a refusal is."""
        self._app = app
        self._metrics = metrics
        self._digests = [hashlib.sha256(key.encode()).digest() for key in settings.api_keys]
        self._open = frozenset(open_paths)
        self._refuse = refuse
        self._logs = settings.log_format != "none"
        self._tracer = None
        # Spans are made where a provider is set when the service is built; else requests pay nothing for them.
        if has_tracing and not isinstance(provider := trace.get_tracer_provider(), trace.ProxyTracerProvider):
            self._tracer = provider.get_tracer("qcls_gguf.service")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """For the server."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1003})
            return
        exchange = Exchange(scope)
        span = self._begin_span(scope)
        status, n_bytes, is_over = _GONE, 0, False

        async def reply(message: Message) -> None:
            nonlocal status, n_bytes, is_over
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *exchange.headers()]
            else:
                n_bytes += len(message.get("body", b""))
                is_over = not message.get("more_body", False)
            await send(message)

        self._metrics.in_flight.inc()
        try:
            self._check_key(scope, exchange)
            await self._app(scope, receive, reply)
        except RefusedError as refusal:
            await self._refuse(refusal, scope)(scope, receive, reply)
        except ClientGoneError:
            self._metrics.gone()
        except Exception:
            log.exception("request %s failed", exchange.request_id)
            if status == _GONE:
                what = f"an error inside the service: its log has it under {exchange.request_id}"
                await self._refuse(RefusedError(500, "failed", what), scope)(scope, receive, reply)
            elif not is_over:
                raise  # the connection ends, so that nobody takes what was sent for the whole
        finally:
            self._metrics.in_flight.dec()
            if exchange.reason:
                self._metrics.refused(exchange.reason)
            self._metrics.answered(exchange.route, status, exchange.total_ms / 1e3)
            if span is not None:
                _end_span(span, exchange, status)
            if self._logs:
                exchange.log(status, n_bytes)

    def _check_key(self, scope: Scope, exchange: Exchange) -> None:
        """Raise RefusedError (401) for a request that brings no key. Every path that is not named open needs one."""
        if not self._digests or scope["path"] in self._open:
            return
        scheme, _, bearer = exchange.header(b"authorization").partition(" ")
        given = bearer.strip() if scheme.lower() == "bearer" else exchange.header(b"x-api-key")
        digest = hashlib.sha256(given.encode("utf-8", "surrogateescape")).digest()
        if not any(hmac.compare_digest(digest, known) for known in self._digests):
            what = "an API key is needed: send Authorization: Bearer KEY, or X-API-Key: KEY"
            raise RefusedError(401, "key", "this API key is not known" if given else what)

    def _begin_span(self, scope: Scope) -> Span | None:
        """The span of a request, below that of the client where its headers name one."""
        if self._tracer is None:
            return None
        name = f"{scope['method']} {scope['path']}"
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        attributes = {"http.request.method": scope["method"], "url.path": scope["path"]}
        parent = propagate.extract(headers)
        return self._tracer.start_span(name, parent, kind=trace.SpanKind.SERVER, attributes=attributes)


def _end_span(span: Span, exchange: Exchange, status: int) -> None:
    """End a span, with the route, the status, and the milliseconds of the stages."""
    span.set_attributes({
        "http.route": exchange.route, "http.response.status_code": status, "qcls.request_id": exchange.request_id,
        "qcls.queries": exchange.n_queries, "qcls.tokens": exchange.n_tokens,
        **{f"qcls.{stage}_ms": ms for stage, ms in exchange.times.items()},
    })  # fmt: skip
    if exchange.reason:
        span.set_attribute("error.type", exchange.reason)
    if status >= 500:
        span.set_status(trace.StatusCode.ERROR)
    span.end()
