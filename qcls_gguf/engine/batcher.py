"""Callers in several threads take turns, and those who wait go together.

Whoever finds nobody at work works at once; those who come meanwhile wait, and the next turn takes as many of them as
one decode is allowed to hold, in the order in which they came. Nobody waits for company.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Generic, TypeVar

from ..errors import BusyError

R = TypeVar("R")


class _Ticket(Generic[R]):
    def __init__(self, queries: Sequence[str]) -> None:
        self.queries = queries
        self.results: Sequence[R] | None = None
        self.error: Exception | None = None
        self.is_wanted = True
        self.came_ns = perf_counter_ns()
        self.wait_ms = 0.0

    @property
    def done(self) -> bool:
        return self.results is not None or self.error is not None


class Turns(Generic[R]):
    """Serialises calls of `work`, which answers several queries at once."""

    def __init__(self, work: Callable[[Sequence[str]], Sequence[R]], *, max_batch: int, max_waiting: int) -> None:
        """work(queries) gives a result for each, and raises QclsError; max_batch: queries that calls share a turn for;
        max_waiting: callers that may wait."""
        self._work = work
        self._max_batch = max_batch
        self._max_waiting = max_waiting
        self._waiting: deque[_Ticket[R]] = deque()
        self._busy = False
        self._changed = threading.Condition(threading.Lock())

    def submit(self, queries: Sequence[str]) -> tuple[Sequence[R], float]:
        """The results of some queries, and the milliseconds until their turn.

        Raises BusyError, and what work raises.
        """
        ticket = _Ticket[R](queries)
        with self._changed:
            if self._busy and len(self._waiting) >= self._max_waiting:
                raise BusyError(
                    f"{len(self._waiting)} callers wait already, as many as runtime.max_waiting allows: ask again "
                    "later, or raise it"
                )
            self._waiting.append(ticket)
            try:
                while self._busy and not ticket.done:
                    self._changed.wait()
            except BaseException:
                ticket.is_wanted = False
                if ticket in self._waiting:
                    self._waiting.remove(ticket)
                raise
            leads = not ticket.done
            self._busy = self._busy or leads
        if leads:
            try:
                while not ticket.done:
                    self._take_turn()
            finally:
                self._leave(ticket)
        if ticket.error is not None:
            raise ticket.error
        assert ticket.results is not None
        return ticket.results, ticket.wait_ms

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A turn for something else."""
        with self._changed:
            while self._busy:
                self._changed.wait()
            self._busy = True
        try:
            yield
        finally:
            self._leave()

    def _leave(self, ticket: _Ticket[R] | None = None) -> None:
        with self._changed:
            if ticket is not None and ticket in self._waiting:
                self._waiting.remove(ticket)
            self._busy = False
            self._changed.notify_all()

    def _take_turn(self) -> None:
        """Answer those who came first, as many as one turn holds."""
        turn: list[_Ticket[R]] = []
        try:
            with self._changed:
                turn.append(self._waiting.popleft())
                n = len(turn[0].queries)
                while self._waiting and n + len(self._waiting[0].queries) <= self._max_batch:
                    turn.append(self._waiting.popleft())
                    n += len(turn[-1].queries)
            now = perf_counter_ns()
            for ticket in turn:
                ticket.wait_ms = (now - ticket.came_ns) / 1e6
            self._answer(turn)
        except BaseException:
            with self._changed:  # an interrupt of this thread is not the others' affair
                left = (ticket for ticket in reversed(turn) if ticket.is_wanted and not ticket.done)
                self._waiting.extendleft(left)
            raise

    def _answer(self, turn: Sequence[_Ticket[R]]) -> None:
        try:
            results = self._work([query for ticket in turn for query in ticket.queries])
        except Exception as e:
            if len(turn) == 1:
                turn[0].error = e
                return
            for ticket in turn:  # whose query it was shows alone
                self._answer([ticket])
            return
        at = 0
        for ticket in turn:
            ticket.results = results[at : at + len(ticket.queries)]
            at += len(ticket.queries)
