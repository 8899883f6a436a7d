"""What every request passes: who may ask, request ids, headers of the answer, the access log, the metrics."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

from .access_log import access, log
from .bodies import Receive, Scope, header
from .exchange import Exchange
from .metrics import Metrics
from .refusal import RefusedError
from .tracing import Tracer

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

Refused = Callable[[RefusedError, Scope], App]

GONE = 499  # as nginx logs a client that left


class Door:
    """An ASGI application around another one. Whatever the inner one raises, it answers."""

    def __init__(
        self,
        app: App,
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
        self._refused = refused
        self._logs = logs
        self._tracer = Tracer()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """For the server."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1003})
            return
        exchange = Exchange(scope)
        span = self._tracer.begin(scope)
        status, n_bytes, is_over = 0, 0, False
        self._metrics.n_in_flight += 1

        async def send_on(message: MutableMapping[str, Any]) -> None:
            nonlocal status, n_bytes, is_over
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *exchange.headers()]
            else:
                n_bytes += len(message.get("body", b""))
                is_over = not message.get("more_body", False)
            await send(message)

        try:
            self._check_key(scope)
            await self._app(scope, receive, send_on)
        except RefusedError as refusal:
            await self._refused(refusal, scope)(scope, receive, send_on)
        except Exception:
            log.exception("request %s failed", exchange.request_id)
            exchange.reason = "failed"
            if status == 0:
                message = f"an error inside the service: its log has it under {exchange.request_id}"
                await self._refused(RefusedError(500, "failed", message), scope)(scope, receive, send_on)
            elif not is_over:
                raise  # the connection ends, so that nobody takes what was sent for the whole
        finally:
            self._metrics.n_in_flight -= 1
            if exchange.reason:
                self._metrics.refused(exchange.reason)
            self._tracer.end(span, exchange, status or GONE)
            self._metrics.answered(exchange.route, status or GONE, exchange.total_ms / 1e3)
            if self._logs:
                self._log(scope, exchange, status or GONE, n_bytes)

    def _check_key(self, scope: Scope) -> None:
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
