"""What every request passes: who may ask, request ids, headers of the answer, the access log, the metrics."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from .access_log import access, log
from .bodies import Receive, Scope, header
from .exchange import Exchange
from .metrics import Metrics
from .protocol import Protocol, Quick
from .refusal import RefusedError
from .tracing import Tracer
from .writing import JsonResponse

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Inner = Callable[[Scope, Receive, Send], Awaitable[JsonResponse | None]]
"""An application that sends its answer, or returns it to be sent"""

Refused = Callable[[RefusedError, Scope], JsonResponse]

GONE = 499  # as nginx logs a client that left


class Door:
    """An ASGI application around another one, whose answer it may send at once. Whatever that raises, it answers."""

    def __init__(
        self,
        app: Inner,
        metrics: Metrics,
        *,
        keys: Collection[str],
        open_paths: Collection[str],
        refused: Refused,
        logs: bool,
    ) -> None:
        """keys: of which a request must bring one, or none are wanted; open_paths: which need none; refused(refusal,
        scope): the answer that a refusal is; logs: whether each request is logged.
        """
        self._app = app
        self._metrics = metrics
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]
        self._open = frozenset(open_paths)
        self.refused = refused
        self._logs = logs
        self._tracer = Tracer()
        self.quick: Quick | None = None
        """what answers the requests that come most, for `Protocol`"""

    @property
    def traces(self) -> bool:
        """Whether there is a span for each request."""
        return self._tracer.is_on

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """For the server."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1003})
            return
        exchange = Exchange(scope)
        span = self._tracer.begin(scope)
        reply = _Reply(exchange, scope, receive, send)
        self.begin()
        try:
            self.check_key(scope)
            response = await self._app(scope, receive, reply.send)
            if response is not None:
                await reply.send_whole(response)
        except RefusedError as refusal:
            await reply.send_whole(self.refused(refusal, scope))
        except Exception:
            failure = self.failure(exchange)
            if reply.status == 0:
                await reply.send_whole(self.refused(failure, scope))
            elif not reply.is_over:
                raise  # the connection ends, so that nobody takes what was sent for the whole
        finally:
            self._tracer.end(span, exchange, reply.status or GONE)
            self.end(scope, exchange, reply.status or GONE, reply.n_bytes)

    def begin(self) -> None:
        """Count a request that comes."""
        self._metrics.n_in_flight += 1

    def end(self, scope: Scope, exchange: Exchange, status: int, n_bytes: int) -> None:
        """Count and log a request that is over."""
        self._metrics.n_in_flight -= 1
        if exchange.reason:
            self._metrics.refused(exchange.reason)
        self._metrics.answered(exchange.route, status, exchange.total_ms / 1e3)
        if self._logs:
            self._log(scope, exchange, status, n_bytes)

    @staticmethod
    def failure(exchange: Exchange) -> RefusedError:
        """What an error that nobody expected is for the client; it is logged. In an `except` block."""
        log.exception("request %s failed", exchange.request_id)
        exchange.reason = "failed"
        return RefusedError(500, "failed", f"an error inside the service: its log has it under {exchange.request_id}")

    def check_key(self, scope: Scope) -> None:
        """Raise RefusedError (401) for a request that brings no key. Every path that is not named open needs one."""
        if not self._digests or scope["path"] in self._open:
            return
        scheme, _, bearer = header(scope, b"authorization").partition(" ")
        given = bearer.strip() if scheme.lower() == "bearer" else header(scope, b"x-api-key")
        digest = hashlib.sha256(given.encode("utf-8", "surrogateescape")).digest()
        if not any(hmac.compare_digest(digest, known) for known in self._digests):
            what = "an API key is needed: send Authorization: Bearer KEY, or X-API-Key: KEY"
            raise RefusedError(401, "key", "this API key is not known" if given else what)

    @staticmethod
    def _log(scope: Scope, exchange: Exchange, status: int, n_bytes: int) -> None:
        client = scope.get("client")
        access(
            id=exchange.request_id,
            client=client[0] if client else "",
            method=scope["method"],
            path=scope.get("raw_path", b"").decode("latin-1")[:200],
            status=status,
            ms=round(exchange.total_ms, 3),
            bytes=n_bytes,
            **exchange.fields(),
        )


class _Reply:
    """What is sent for one request, with the exchange's headers; and how much that was."""

    __slots__ = ("_exchange", "_receive", "_scope", "_send", "is_over", "n_bytes", "status")

    def __init__(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        self._exchange = exchange
        self._scope = scope
        self._receive = receive
        self._send = send
        self.status = self.n_bytes = 0
        self.is_over = False

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """For applications."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), *self._exchange.headers()]
        else:
            self.n_bytes += len(message.get("body", b""))
            self.is_over = not message.get("more_body", False)
        await self._send(message)

    async def send_whole(self, response: JsonResponse) -> None:
        """Send an answer: at once where nothing stands between this and the connection, whose client reads."""
        connection, request = Protocol.of(self._scope), getattr(self._send, "__self__", None)
        if (
            connection is None
            or not isinstance(request, RequestResponseCycle)
            or request.disconnected
            or request.response_started
            or response.closes
            or connection.flow.write_paused
            or self._scope["method"] != "POST"  # of others, HEAD has no body
        ):
            await response(self._scope, self._receive, self.send)
            return
        self.status, self.n_bytes, self.is_over = response.status_code, len(response.body), True
        lines = response.lines + self._exchange.header_lines()
        connection.answer(request, response.status_code, lines, bytes(response.body))
