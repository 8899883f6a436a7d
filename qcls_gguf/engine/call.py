"""One call to the batcher: its items, how its caller waits, and how the answer is delivered."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from time import perf_counter_ns
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from ..errors import DeadlineError

if TYPE_CHECKING:  # callers that await have imported asyncio; others need not
    from asyncio import AbstractEventLoop

Q = TypeVar("Q")
R = TypeVar("R")
A = TypeVar("A", contravariant=True)

_USUAL_S = 10.0
"""Seconds. Callers with a later deadline, or none, queue as if they had this one, so that they do not wait forever."""


class Gate:
    """One thread waits at it until another opens it; opening it twice opens it once.

    It is a bare lock, because an interrupt can leave the lock inside a threading.Event taken.
    """

    __slots__ = ("_closed",)

    def __init__(self) -> None:
        self._closed = threading.Lock()
        self._closed.acquire()

    def open(self) -> None:
        """Let the waiting thread go on, or the next one that waits."""
        with suppress(RuntimeError):  # it is open already
            self._closed.release()

    def wait(self, timeout_s: float) -> None:
        """Wait until it is opened, or timeout_s has passed."""
        self._closed.acquire(timeout=timeout_s)


class Taker(Protocol[A]):
    """Receives an answer in the thread of an event loop, such as an asyncio.Future."""

    def get_loop(self) -> AbstractEventLoop:
        """The event loop. May be called in any thread."""

    def cancelled(self) -> bool:
        """Whether the answer is no longer wanted. May be called in any thread."""

    def done(self) -> bool:
        """Whether it has received the answer or is cancelled."""

    def set_result(self, result: A, /) -> None:
        """Receive the answer."""

    def set_exception(self, exception: Exception, /) -> None:
        """Receive the error instead of an answer."""


class Call(Generic[Q, R]):
    """One caller's items, and their results or error."""

    __slots__ = ("came_ns", "deadline_ns", "error", "gate", "items", "order_ns", "results", "taker", "was_given_up")

    def __init__(
        self, items: Sequence[Q], deadline_s: float | None, gate: Gate, taker: Taker[Sequence[R]] | None = None
    ) -> None:
        """deadline_s: seconds after which it is not begun any more; gate: where the thread waits that serves the call
        if no other does; taker: receives the answer; None: the caller itself waits at the gate for it.
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
        """Whether it still needs an answer."""
        if self.is_done or self.was_given_up:
            return False
        return self.taker is None or not self.taker.cancelled()

    @property
    def is_late(self) -> bool:
        """Whether its deadline has passed."""
        return self.deadline_ns is not None and perf_counter_ns() >= self.deadline_ns

    def late_error(self) -> DeadlineError:
        """The error for a call whose deadline has passed."""
        waited_ms = (perf_counter_ns() - self.came_ns) / 1e6
        return DeadlineError(f"the deadline passed after {waited_ms:.0f} ms of waiting: nothing was computed")

    def settle(self) -> None:
        """Give the answer to its taker, unless that is cancelled. Only for the thread of the taker's loop."""
        assert self.taker is not None
        if self.taker.done():
            return
        if self.error is not None:
            self.taker.set_exception(self.error)
        else:
            assert self.results is not None
            self.taker.set_result(self.results)
