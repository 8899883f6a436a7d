"""What is known of one request while it is served, for its answer's headers, the log and the metrics."""

from __future__ import annotations

import itertools
import os
import re
from time import perf_counter_ns
from typing import Any

from ..score.result import Result
from ..timing import STAGES
from .bodies import Scope, header
from .refusal import RefusedError
from .settings import RequestLimits

_KEY = "qcls_gguf.exchange"
_MOST_DIGITS = 9
_GOOD_ID = re.compile(r"[\w.:/+=-]{1,128}", re.ASCII)
_STAGES = ("total", "queue", *STAGES, "inference")
_TIMES = "".join([
    "server-timing: ", ", ".join(f"{stage};dur=%.3f" for stage in _STAGES),
    "\r\nx-total-time: %.3f\r\nx-queue-time: %.3f\r\nx-tokenization-time: %.3f\r\nx-inference-time: %.3f",
    "\r\nx-compute-tokens: %d\r\n",
]).encode()  # fmt: skip
_prefix = os.urandom(6).hex()
_numbers = itertools.count(1)


class Exchange:
    """One request. `of(scope)` finds it."""

    __slots__ = ("began_ns", "n_queries", "n_tokens", "reason", "request_id", "route", "timeout_ms", "times")

    def __init__(self, scope: Scope) -> None:
        self.began_ns = perf_counter_ns()
        given = header(scope, b"x-request-id")
        self.request_id = given if given and _GOOD_ID.fullmatch(given) else f"{_prefix}-{next(_numbers):x}"
        self.route = "other"
        """the path as it is documented"""
        self.reason = ""
        """why it was refused"""
        self.n_queries = 0
        self.n_tokens = 0
        """that were fed"""
        self.times: dict[str, float] | None = None
        """milliseconds of each stage of its only query, or of its last one"""
        self.timeout_ms = 0
        """after which a query that has not begun is not computed"""
        scope[_KEY] = self

    @staticmethod
    def of(scope: Scope) -> Exchange:
        """The exchange of a request."""
        found = scope[_KEY]
        assert isinstance(found, Exchange)
        return found

    def set_deadline(self, scope: Scope, limits: RequestLimits) -> None:
        """Take the deadline from the request's header, or the usual one. Raises RefusedError (400)."""
        text = header(scope, b"x-request-timeout-ms")
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
        return (self.timeout_ms - self.total_ms) / 1e3

    def answered(self, result: Result) -> None:
        """Note the answer to a query."""
        self.n_queries += 1
        self.n_tokens += result.counts.n_tokens_new
        self.times = {"queue": result.wait_ms, **result.stage_ms, "inference": result.total_ms}

    @property
    def total_ms(self) -> float:
        """Since the request's head came."""
        return (perf_counter_ns() - self.began_ns) / 1e6

    def header_lines(self) -> bytes:
        """Request id, and the times of the stages in milliseconds, as Server-Timing and as TEI names them: as they are
        sent, each with its line's end.
        """
        request_id = self.request_id.encode()
        lines = b"x-request-id: %b\r\nx-typesafe-request-id: %b\r\n" % (request_id, request_id)
        if times := self.times:
            total = self.total_ms
            queue, *stages, inference = times.values()
            lines += _TIMES % (
                total, queue, *stages, inference, total, queue, times["tokenize"], inference, self.n_tokens
            )  # fmt: skip
        return lines

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The same as pairs."""
        pairs = (line.partition(b": ") for line in self.header_lines().splitlines())
        return [(name, value) for name, _, value in pairs]

    def fields(self) -> dict[str, Any]:
        """For the log."""
        found: dict[str, Any] = {}
        if self.times:
            found = {"queue_ms": round(self.times["queue"], 3), "inference_ms": round(self.times["inference"], 3)}
        if self.n_queries:
            found |= {"queries": self.n_queries, "tokens": self.n_tokens}
        if self.reason:
            found["reason"] = self.reason
        return found
