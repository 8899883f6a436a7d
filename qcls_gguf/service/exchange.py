"""The state of a request while it is served: its id, its deadline, headers of its answer, its line of the log."""

from __future__ import annotations

import itertools
import logging
import os
import re
import sys
from datetime import UTC, datetime
from time import perf_counter_ns
from urllib.parse import quote

from starlette.types import Scope

from ..score.result import Result
from ..system.timing import STAGES
from .refusal import RefusedError
from .settings import RequestLimits

log = logging.getLogger("qcls_gguf.service")
_KEY = "qcls_gguf.exchange"
_MOST_DIGITS = 9
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
