"""One caller of the batcher: what it asks, where it waits, and how it gets its answer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from time import perf_counter_ns
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from ..errors import DeadlineError

if TYPE_CHECKING:  # whoever awaits has it; others are spared its import
    from asyncio import AbstractEventLoop

Q = TypeVar("Q")
R = TypeVar("R")
A = TypeVar("A", contravariant=True)

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


class Taker(Protocol[A]):
    """Takes an answer in the thread of an event loop, as an asyncio.Future does."""

    def get_loop(self) -> AbstractEventLoop:
        """The loop; for any thread."""

    def cancelled(self) -> bool:
        """Whether the answer is not wanted any more; for any thread."""

    def done(self) -> bool:
        """Whether it is over: taken, or not wanted any more."""

    def set_result(self, result: A, /) -> None:
        """Take the answer."""

    def set_exception(self, exception: Exception, /) -> None:
        """Take the error in its place."""


class Call(Generic[Q, R]):
    """One caller's items, and where the answers are put."""

    __slots__ = ("came_ns", "deadline_ns", "error", "gate", "items", "order_ns", "results", "taker", "was_given_up")

    def __init__(
        self, items: Sequence[Q], deadline_s: float | None, gate: Gate, taker: Taker[Sequence[R]] | None = None
    ) -> None:
        """deadline_s: seconds after which it is not begun any more; gate: where waits who serves it if nobody else
        does; taker: of the answer, where that is not the caller, who waits at the gate for it.
        """
        self.items = items
        self.results: Sequence[R] | None = None
        self.error: Exception | None = None
        self.was_given_up = False
        self.came_ns = perf_counter_ns()
        self.deadline_ns = None if deadline_s is None else self.came_ns + int(deadline_s * 1e9)
        self.order_ns = self.came_ns + int(min(_USUAL_S if deadline_s is None else deadline_s, _USUAL_S) * 1e9)
        self.taker = taker
        self.gate = gate

    @property
    def is_done(self) -> bool:
        """Whether there is an answer, or an error in its place."""
        return self.results is not None or self.error is not None

    @property
    def is_open(self) -> bool:
        """Whether an answer is still owed."""
        if self.is_done or self.was_given_up:
            return False
        return self.taker is None or not self.taker.cancelled()

    @property
    def is_late(self) -> bool:
        """Whether its deadline has passed."""
        return self.deadline_ns is not None and perf_counter_ns() >= self.deadline_ns

    def late_error(self) -> DeadlineError:
        """What its caller is told then."""
        waited_ms = (perf_counter_ns() - self.came_ns) / 1e6
        return DeadlineError(f"the deadline passed after {waited_ms:.0f} ms of waiting: nothing was computed")

    def settle(self) -> None:
        """Give the answer to its taker, unless nobody wants it any more; for the thread of its loop."""
        assert self.taker is not None
        if self.taker.done():
            return
        if self.error is not None:
            self.taker.set_exception(self.error)
        else:
            assert self.results is not None
            self.taker.set_result(self.results)
