"""One caller of the batcher: what it asks, where it waits, and how it gets its answer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from time import perf_counter_ns
from typing import TYPE_CHECKING, Generic, TypeVar

from ..errors import DeadlineError

if TYPE_CHECKING:  # whoever awaits has it; others are spared its import
    from asyncio import Future

Q = TypeVar("Q")
R = TypeVar("R")

_USUAL_S = 10.0
"""Callers with a later deadline, or none, queue as if they had this one: others do not pass them for ever."""


class Gate:
    """What one thread waits at and another opens; opening it twice opens it once.

    A bare lock, which an interrupt cannot leave half taken, as it can the lock inside a threading.Event.
    """

    __slots__ = ("_closed",)

    def __init__(self) -> None:
        self._closed = threading.Lock()
        self._closed.acquire()

    def open(self) -> None:
        """Let who waits go on, or who comes next."""
        with suppress(RuntimeError):  # it is open already
            self._closed.release()

    def wait(self, timeout_s: float) -> None:
        """Until it is opened, or so long."""
        self._closed.acquire(timeout=timeout_s)


class Call(Generic[Q, R]):
    """One caller's items, and where the answers are put."""

    __slots__ = ("came_ns", "deadline_ns", "error", "future", "gate", "items", "order_ns", "results", "was_given_up")

    def __init__(self, items: Sequence[Q], deadline_s: float | None, future: Future[Sequence[R]] | None) -> None:
        """deadline_s: seconds after which it is not begun any more; future: of a caller that does not block."""
        self.items = items
        self.results: Sequence[R] | None = None
        self.error: Exception | None = None
        self.was_given_up = False
        self.came_ns = perf_counter_ns()
        self.deadline_ns = None if deadline_s is None else self.came_ns + int(deadline_s * 1e9)
        self.order_ns = self.came_ns + int(min(_USUAL_S if deadline_s is None else deadline_s, _USUAL_S) * 1e9)
        self.future = future
        self.gate = Gate()

    @property
    def is_done(self) -> bool:
        """Whether there is an answer, or an error in its place."""
        return self.results is not None or self.error is not None

    @property
    def is_open(self) -> bool:
        """Whether an answer is still owed."""
        if self.is_done or self.was_given_up:
            return False
        return self.future is None or not self.future.cancelled()

    @property
    def is_late(self) -> bool:
        """Whether its deadline has passed."""
        return self.deadline_ns is not None and perf_counter_ns() >= self.deadline_ns

    def late_error(self) -> DeadlineError:
        """What its caller is told then."""
        waited_ms = (perf_counter_ns() - self.came_ns) / 1e6
        return DeadlineError(f"the deadline passed after {waited_ms:.0f} ms of waiting: nothing was computed")

    def settle(self) -> None:
        """Give the answer to the future, unless it was cancelled; for the thread of its loop."""
        assert self.future is not None
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            assert self.results is not None
            self.future.set_result(self.results)
