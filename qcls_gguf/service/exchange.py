"""A request while it is served: its body, its deadline, its counts, headers of its answer, its line of the log."""

import asyncio
import itertools
import os
import re
from collections.abc import Coroutine, Sequence
from time import perf_counter_ns
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope

from ..core.core import Item
from ..questions.asking import QuestionAsker, Usage
from ..score.result import STAGES, Result
from .lifecycle import Lifecycle, log
from .metrics import Metrics
from .refusal import RefusedError, check_size, json_value

JSON = "application/json"
T = TypeVar("T")
_LONGEST_TIMEOUT_MS = 600_000
_BODY_TIMEOUT_S = 30.0
"""for a whole body to arrive"""
_UNWATCHED_S = 0.02
"""of a request's work, after which it is looked whether its client is still there"""
_GOOD_ID = re.compile(r"[\w.:/+=-]{1,128}", re.ASCII)
_TIMINGS = ", ".join(f"{stage};dur=%.3f" for stage in ("total", "queue", *STAGES, "inference"))
_prefix = os.urandom(6).hex()
_numbers = itertools.count(1)


class Exchange(Request):
    """A request, and what is known of its answer."""

    def __init__(self, scope: Scope, receive: Receive, lifecycle: Lifecycle, metrics: Metrics) -> None:
        async def read() -> Message:
            message = await receive()
            self.is_read = not message.get("more_body", False)
            return message

        super().__init__(scope, read)
        self.began_ns = perf_counter_ns()
        self.lifecycle = lifecycle
        self.backend: QuestionAsker
        """the classifier that answers it; there is one once its body has been read"""
        self.limits = lifecycle.settings
        self.metrics = metrics
        self._by_name: dict[bytes, bytes] = dict(scope["headers"])
        given = self.header(b"x-request-id")
        self.request_id = given if _GOOD_ID.fullmatch(given) else f"{_prefix}-{next(_numbers):x}"
        self.route = "other"
        """the path as it is documented"""
        self.reason = ""
        """why it was refused"""
        self.usage = Usage()
        """tokens of its texts or questions"""
        self.n_queries = 0
        self.n_cut = 0
        """queries of which a part was answered"""
        self.times: dict[str, float] = {}
        """milliseconds of the stages of its only query, or of its last one"""
        self.timeout_ms = self.limits.timeout_ms
        """after which a query that has not begun is not computed"""
        self.is_read = False
        """whether its body has come whole"""

    def header(self, name: bytes) -> str:
        """The value of a header, empty where there is none; of several the last, as proxies append theirs."""
        return self._by_name.get(name, b"").decode("latin-1").strip()

    @property
    def seconds_left(self) -> float:
        """Until the deadline; 0 or less when it has passed."""
        return (self.timeout_ms - self.total_ms) / 1e3

    @property
    def total_ms(self) -> float:
        """Since the request's head came."""
        return (perf_counter_ns() - self.began_ns) / 1e6

    # --- the body ----------------------------------------------------------------------------------------------------

    async def read_json(self) -> object:
        """The body as any JSON; the deadline is taken from the headers. Raises RefusedError (400, 408, 413, 415)."""
        if text := self.header(b"x-request-timeout-ms"):
            ms = int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else 0
            if not 1 <= ms <= _LONGEST_TIMEOUT_MS:
                what = f"{text[:40]!r} is not a whole number of milliseconds from 1 to {_LONGEST_TIMEOUT_MS}"
                raise RefusedError(400, "invalid", f"x-request-timeout-ms: {what}", param="x-request-timeout-ms")
            self.timeout_ms = ms
        if (encoding := self.header(b"content-encoding").lower()) not in ("", "identity"):
            what = f"content-encoding {encoding[:40]!r} is not known: send the body as it is"
            raise RefusedError(415, "media type", what, param="content-encoding")
        kind = self.header(b"content-type").partition(";")[0].strip().lower()
        if kind not in ("", JSON) and not kind.endswith("+json"):
            what = f"content-type {kind[:100]!r} is not {JSON}: send the header `content-type: {JSON}`"
            raise RefusedError(415, "media type", what, param="content-type")
        length = self.header(b"content-length")
        self._check_body(int(length) if length.isdecimal() else 0)
        body = bytearray()
        try:
            async with asyncio.timeout(_BODY_TIMEOUT_S):
                async for part in self.stream():
                    body += part
                    self._check_body(len(body))
        except TimeoutError:
            what = f"the body did not arrive within {_BODY_TIMEOUT_S:g} s"
            raise RefusedError(408, "slow body", what, param="body") from None
        return json_value(body)

    def _check_body(self, n_bytes: int) -> None:
        remedy = "send less at once, or start the service with a larger --max-body"
        check_size(n_bytes, self.limits.body_bytes, "bytes", "body", remedy)

    async def unless_gone(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, after the body has been read.

        Cancels the work and raises ClientDisconnect if the client leaves before that.
        """
        task, loop, watching = asyncio.current_task(), asyncio.get_running_loop(), set[asyncio.Task[None]]()
        has_left = False

        async def watch() -> None:
            nonlocal has_left
            while (await self.receive())["type"] != "http.disconnect":
                pass
            has_left = task is not None and task.cancel()

        timer = loop.call_later(_UNWATCHED_S, lambda: watching.add(loop.create_task(watch())))
        try:
            return await work
        except asyncio.CancelledError:
            if has_left and task and not task.uncancel():
                raise ClientDisconnect from None
            raise
        finally:
            timer.cancel()
            for watcher in watching:
                watcher.cancel()

    # --- the answer --------------------------------------------------------------------------------------------------

    async def results(self, pairs: Sequence[Item]) -> list[Result]:
        """The answers to pairs, all from one turn; they are counted."""
        results = await self.backend.classifier.core.ask_async(pairs, self.seconds_left)
        for result in results:
            counts = result.counts  # of the turn, which others' queries may share
            self.usage.new += counts.n_tokens_new / counts.n_queries
            self.usage.cached += counts.n_tokens_cached / counts.n_queries
            self.n_queries += 1
            self.n_cut += result.n_chars_cut > 0
            self.times = {"queue": result.wait_ms, **result.stage_ms, "inference": result.total_ms}
            self.metrics.labelled(result)
            self.lifecycle.note_time(result.total_ms / counts.n_queries)
        return results

    def answer_headers(self) -> list[tuple[bytes, bytes]]:
        """Request id, the times of the stages in milliseconds, and counts."""
        headers = {"x-request-id": self.request_id, "x-typesafe-request-id": self.request_id}
        if self.times:
            headers["server-timing"] = _TIMINGS % (self.total_ms, *self.times.values())
            headers["x-compute-tokens"] = str(round(self.usage.new))
        if self.n_cut:
            headers["x-queries-cut"] = str(self.n_cut)
        return [(name.encode(), value.encode()) for name, value in headers.items()]

    def log(self, status: int) -> None:
        """Write the request's line of the log, which never has queries or keys."""
        path = self.scope.get("raw_path", b"").decode("ascii", "backslashreplace")[:200]
        fields: dict[str, object] = {"id": self.request_id, "client": self.client.host if self.client else ""}
        fields |= {"method": self.method, "path": path, "status": status, "ms": f"{self.total_ms:.3f}"}
        if self.times:
            fields |= {f"{name}_ms": f"{self.times[name]:.3f}" for name in ("queue", "decode", "inference")}
            fields |= {"queries": self.n_queries, "tokens": round(self.usage.new)}
        if self.reason:
            fields["reason"] = repr(self.reason)
        log.info(" ".join(f"{name}={value}" for name, value in fields.items()))
