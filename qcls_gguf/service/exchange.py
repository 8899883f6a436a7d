"""What every request passes: who may ask, request ids, headers of the answer, the log, the metrics, spans."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import logging
import os
import re
import sys
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import orjson
from starlette.responses import Response

from ..score.result import Result
from ..system.timing import STAGES
from .metrics import Metrics
from .refusal import ClientGoneError, RefusedError
from .settings import LogFormat, RequestLimits, ServiceSettings

if TYPE_CHECKING:
    from opentelemetry.trace import Span

try:
    from opentelemetry import propagate, trace
except ImportError:
    has_tracing = False
else:
    has_tracing = True

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_GONE = 499  # as nginx logs a client that left
log = logging.getLogger("qcls_gguf.service")
_KEY = "qcls_gguf.exchange"
_MOST_DIGITS = 9
_GOOD_ID = re.compile(r"[\w.:/+=-]{1,128}", re.ASCII)
_TIMINGS = ", ".join(f"{stage};dur=%.3f" for stage in ("total", "queue", *STAGES, "inference"))
_prefix = os.urandom(6).hex()
_numbers = itertools.count(1)


class Exchange:
    """What is known of one request while it is served. `of(scope)` finds it."""

    def __init__(self, scope: Scope) -> None:
        self.began_ns = perf_counter_ns()
        self._scope = scope
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        given = self.header(b"x-request-id")
        self.request_id = given if _GOOD_ID.fullmatch(given) else f"{_prefix}-{next(_numbers):x}"
        self.reason = ""
        """why it was refused"""
        self.n_queries = 0
        self.n_tokens = 0
        """that were fed"""
        self.times: dict[str, float] = {}
        """milliseconds of each stage of its only query, or of its last one"""
        self.timeout_ms = 0
        """after which a query that has not begun is not computed"""
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

    @property
    def route(self) -> str:
        """The path as it is documented."""
        return getattr(self._scope.get("route"), "path_format", "other")

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
        self.times = {"queue": result.wait_ms, **result.stage_ms, "inference": result.total_ms}

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
        return [(name.encode(), value.encode()) for name, value in headers]

    def log(self, status: int, n_bytes: int) -> None:
        """Write the request's line of the log, which never has queries or keys."""
        client = self._scope.get("client")
        fields: dict[str, object] = {
            "id": self.request_id,
            "client": client[0] if client else "",
            "method": self._scope["method"],
            "path": self._scope.get("raw_path", b"").decode("latin-1")[:200],
            "status": status,
            "ms": round(self.total_ms, 3),
            "bytes": n_bytes,
        }
        if times := self.times:
            fields |= {"queue_ms": round(times["queue"], 3), "inference_ms": round(times["inference"], 3)}
        if self.n_queries:
            fields |= {"queries": self.n_queries, "tokens": self.n_tokens}
        if self.reason:
            fields["reason"] = self.reason
        log.info("", extra={"fields": fields})


class ExchangeMiddleware:
    """An ASGI application around another one. Whatever that raises, it answers."""

    def __init__(
        self,
        app: App,
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

        async def refuse(refusal: RefusedError) -> None:
            exchange.reason = refusal.reason
            await self._refusal(refusal, scope)(scope, receive, reply)

        self._metrics.in_flight.inc()
        try:
            self._check_key(scope, exchange)
            await self._app(scope, receive, reply)
        except RefusedError as refusal:
            await refuse(refusal)
        except ClientGoneError:
            self._metrics.gone.inc()
        except Exception:
            log.exception("request %s failed", exchange.request_id)
            if status == _GONE:
                what = f"an error inside the service: its log has it under {exchange.request_id}"
                await refuse(RefusedError(500, "failed", what))
            elif not is_over:
                raise  # the connection ends, so that nobody takes what was sent for the whole
        finally:
            self._metrics.in_flight.dec()
            self._metrics.answered(exchange.route, status, exchange.total_ms / 1e3, exchange.reason)
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


# --- the log ---------------------------------------------------------------------------------------------------------


def set_up_log(format_: LogFormat) -> None:
    """Let the service's lines go to standard error, and uvicorn's errors."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines(as_json=format_ == "json"))
    for name, level in (("qcls_gguf.service", logging.INFO), ("uvicorn", logging.ERROR)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level)


class _Lines(logging.Formatter):
    """One line for each record, for people or as JSON."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = getattr(record, "fields", None) or {"message": record.getMessage()}
        error = self.formatException(record.exc_info) if record.exc_info else None
        seconds = int(record.created)
        at = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{int((record.created - seconds) * 1e3):03}Z"
        if self._as_json:
            whole = {"time": at, "level": record.levelname.lower(), **fields}
            return orjson.dumps(whole | ({"error": error} if error else {})).decode()
        words = [at, *(f"{name}={_word(value)}" for name, value in fields.items())]
        if "message" in fields:
            words = [at, record.levelname.lower(), str(fields["message"])]
        return " ".join(words) + (f"\n{error}" if error else "")


def _word(value: object) -> str:
    """A value without spaces or line breaks, so that a line stays one line of words."""
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return text if text.isprintable() and " " not in text else repr(text)
