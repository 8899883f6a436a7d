"""The common part of all requests: keys, request ids, headers of the answer, the log, the metrics."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import itertools
import logging
import os
import re
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import UTC, datetime
from time import perf_counter_ns
from urllib.parse import quote

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import QclsError
from ..score.result import Result
from ..system.timing import STAGES
from .metrics import Metrics
from .refusal import RefusedError, refusal_of
from .settings import RequestLimits, ServiceSettings

_GONE = 499  # as nginx logs a client that left
log = logging.getLogger("qcls_gguf.service")
_KEY = "qcls_gguf.exchange"
_MOST_DIGITS = 9
_MOST_DROPPED_BYTES = 64 << 20
"""of the body of a request that is refused"""
_DROP_S, _DROP_IDLE_S = 10.0, 1.0
"""for them to come, and for the next of them"""
_GOOD_ID = re.compile(r"[\w.:/+=-]{1,128}", re.ASCII)
_TIMINGS = ", ".join(f"{stage};dur=%.3f" for stage in ("total", "queue", *STAGES, "inference"))
_prefix = os.urandom(6).hex()
_numbers = itertools.count(1)


class Exchange:
    """The state of one request while it is served. `of(scope)` finds it."""

    def __init__(self, scope: Scope) -> None:
        self.began_ns = perf_counter_ns()
        self._scope = scope
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        given = self.header(b"x-request-id")
        self.request_id = given if _GOOD_ID.fullmatch(given) else f"{_prefix}-{next(_numbers):x}"
        self.route = "other"
        """the path as it is documented"""
        self.reason = ""
        """why it was refused"""
        self.n_queries = 0
        self.n_tokens = 0
        """that were fed"""
        self.n_cut = 0
        """queries of which a part was answered"""
        self.times: dict[str, float] = {}
        """milliseconds of each stage of its only query, or of its last one"""
        self.stages: dict[str, None] = {}
        """those of a cascade that gave its answers"""
        self.timeout_ms = 0
        """after which a query that has not begun is not computed"""
        self.is_read = False
        """whether its body has come whole"""
        self.closes = False
        """whether the rest of its body is not read, so that the connection ends with its answer"""
        self.streams = False
        """whether its queries come one after another, each with a deadline of its own"""
        scope[_KEY] = self

    @staticmethod
    def of(scope: Scope) -> Exchange:
        """The exchange of a request."""
        exchange = scope[_KEY]
        assert isinstance(exchange, Exchange)
        return exchange

    def header(self, name: bytes) -> str:
        """The value of a header, empty where there is none; of several the last, as proxies append theirs."""
        return self._headers.get(name, b"").decode("latin-1").strip()

    @property
    def content_type(self) -> str:
        """The media type of the body, in small letters, without parameters; empty where the request does not say."""
        return self.header(b"content-type").partition(";")[0].strip().lower()

    def set_deadline(self, limits: RequestLimits) -> None:
        """Take the deadline from the request's header, or the usual one. Raises RefusedError (400)."""
        text = self.header(b"x-request-timeout-ms")
        ms = limits.timeout_ms
        if text:
            ms = int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else 0
            if not 1 <= ms <= limits.longest_timeout_ms:
                what = f"{text[:40]!r} is not a whole number of milliseconds from 1 to {limits.longest_timeout_ms}"
                raise RefusedError(400, "invalid", f"x-request-timeout-ms: {what}", param="x-request-timeout-ms")
        self.timeout_ms = ms

    @property
    def seconds_left(self) -> float:
        """Until the deadline; 0 or less when it has passed."""
        return (self.timeout_ms - (0 if self.streams else self.total_ms)) / 1e3

    @property
    def total_ms(self) -> float:
        """Since the request's head came."""
        return (perf_counter_ns() - self.began_ns) / 1e6

    def answered(self, result: Result) -> None:
        """Note the answer to a query."""
        self.n_queries += 1
        self.n_tokens += result.counts.n_tokens_new
        self.n_cut += result.n_chars_cut > 0
        self.times = {"queue": result.wait_ms, **result.stage_ms, "inference": result.total_ms}
        self.stages.update({answer.stage: None for answer in result.results if answer.stage is not None})

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Request id, and the times of the stages in milliseconds, as Server-Timing and as TEI names them."""
        headers = [("x-request-id", self.request_id), ("x-typesafe-request-id", self.request_id)]
        if times := self.times:
            total = self.total_ms
            headers += [
                ("server-timing", _TIMINGS % (total, *times.values())),
                ("x-total-time", f"{total:.3f}"),
                ("x-queue-time", f"{times['queue']:.3f}"),
                ("x-tokenization-time", f"{times['tokenize']:.3f}"),
                ("x-inference-time", f"{times['inference']:.3f}"),
                ("x-compute-tokens", str(self.n_tokens)),
            ]
        if self.n_cut:
            headers.append(("x-queries-cut", str(self.n_cut)))
        if self.stages:
            headers.append(("x-stage", quote(", ".join(self.stages), safe=", ")))
        return [(name.encode(), value.encode()) for name, value in headers]

    def log(self, status: int) -> None:
        """Write the request's line of the log, which never has queries or keys."""
        client, path = self._scope.get("client"), self._scope.get("raw_path", b"").decode("latin-1")[:200]
        fields: dict[str, object] = {"id": self.request_id, "client": client[0] if client else ""}
        fields |= {"method": self._scope["method"], "path": path, "status": status, "ms": round(self.total_ms, 3)}
        if self.times:
            fields |= {f"{name}_ms": round(self.times[name], 3) for name in ("queue", "decode", "inference")}
            fields |= {"queries": self.n_queries, "tokens": self.n_tokens}
        if self.reason:
            fields["reason"] = self.reason
        log.info("", extra={"fields": fields})


class ExchangeMiddleware:
    """An ASGI application around another one, which turns every exception of that one into an answer."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        settings: ServiceSettings,
        *,
        open_paths: Collection[str],
        refusal: Callable[[RefusedError, Scope], Response],
    ) -> None:
        """open_paths: which need no key; refusal(error, scope): the answer that a refusal is."""
        self._app = app
        self._metrics = metrics
        self._digests = [hashlib.sha256(key.encode()).digest() for key in settings.api_keys]
        self._open = frozenset(open_paths)
        self._refusal = refusal
        self._logs = settings.logs_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """For the server."""
        exchange = Exchange(scope)
        status = _GONE

        async def read() -> Message:
            message = await receive()
            exchange.is_read = not message.get("more_body", False)
            return message

        async def reply(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *exchange.headers()]
            await send(message)

        async def refuse(refusal: RefusedError) -> None:
            exchange.reason = refusal.reason
            if not exchange.is_read:
                exchange.closes = refusal.status == 408 or bool(exchange.header(b"expect")) or not await _dropped(read)
            await self._refusal(refusal, scope)(scope, receive, reply)

        self._metrics.in_flight.inc()
        try:
            self._check_key(scope, exchange)
            await self._app(scope, read, reply)
        except (RefusedError, QclsError) as e:
            await refuse(refusal_of(e))
        except ClientDisconnect:
            self._metrics.gone.inc()
        except Exception:
            if status != _GONE:
                raise  # uvicorn ends the connection, so that nobody takes what was sent for the whole
            log.exception("request %s failed", exchange.request_id)
            what = f"an error inside the service: its log has it under {exchange.request_id}"
            await refuse(RefusedError(500, "failed", what))
        finally:
            self._metrics.in_flight.dec()
            self._metrics.answered(exchange.route, status, exchange.total_ms / 1e3, exchange.reason)
            if self._logs:
                exchange.log(status)

    def _check_key(self, scope: Scope, exchange: Exchange) -> None:
        """Raise RefusedError (401) for a request without a key, unless its path is open."""
        if not self._digests or scope["path"] in self._open:
            return
        scheme, _, bearer = exchange.header(b"authorization").partition(" ")
        given = bearer.strip() if scheme.lower() == "bearer" else exchange.header(b"x-api-key")
        digest = hashlib.sha256(given.encode("utf-8", "surrogateescape")).digest()
        if not any(hmac.compare_digest(digest, known) for known in self._digests):
            what = "an API key is needed: send Authorization: Bearer KEY, or X-API-Key: KEY"
            raise RefusedError(401, "key", "this API key is not known" if given else what)


async def _dropped(read: Receive) -> bool:
    """Read the rest of a body, as many clients send all of it before they read an answer; returns whether it ended."""
    n = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(_DROP_S):
            while n < _MOST_DROPPED_BYTES:
                async with asyncio.timeout(_DROP_IDLE_S):
                    message = await read()
                n += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return True
    return False


# --- the log ---------------------------------------------------------------------------------------------------------


def set_up_log() -> None:
    """Let the service's lines go to standard error, and uvicorn's errors."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    for name, level in (("qcls_gguf.service", logging.INFO), ("uvicorn", logging.ERROR)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level)


class _Lines(logging.Formatter):
    """One line for each record, `name=value …`, with the lines of an error below it."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        about = getattr(record, "fields", None) or {"message": record.message}
        fields: dict[str, object] = {"time": at, "level": record.levelname.lower(), **about}
        return " ".join(f"{name}={_word(value)}" for name, value in fields.items())


def _word(value: object) -> str:
    """A value without spaces or line breaks, so that a line stays one line of words."""
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return text if text.isprintable() and " " not in text else repr(text)
