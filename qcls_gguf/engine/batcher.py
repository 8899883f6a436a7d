"""Who waits, who goes together, and when: callers of several threads share one engine.

Callers queue by their deadlines, then by when they came; a turn takes the first, and of the next ones as many as may
join it. Nobody waits for company. A turn is served by whichever thread holds the lock `alone`: the caller that finds
nobody at work, then one of those who wait, or, for callers that do not block, a thread of the batcher's own.

Nothing but that lock, and `inside` with it, is ever held, and `with` takes and leaves each in one step of the
interpreter, so an interrupt (KeyboardInterrupt) may come anywhere: the calls of an interrupted turn stay listed and are
served by the next one.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..errors import BusyError, DecodeError
from .call import Call, Gate

if TYPE_CHECKING:  # whoever awaits has it; others are spared its import
    from asyncio import AbstractEventLoop, Future

Q = TypeVar("Q")
R = TypeVar("R")
T = TypeVar("T")

_LOOK_AGAIN_S = 0.1
"""A caller that waits looks so often whether anybody serves: an interrupt may have stopped whoever was to wake it."""
_THREAD_LOOKS_S = 1.0
_EXIT_S = 60.0
"""How long the interpreter's exit waits for a decode to end."""


class Batcher(Generic[Q, R]):
    """Serialises calls of `work`, which answers several items at once."""

    def __init__(
        self,
        work: Callable[[Sequence[Q]], Sequence[R]],
        *,
        max_batch: int,
        max_waiting: int,
        joins: Callable[[Sequence[Sequence[Q]], Sequence[Q], int], bool] = lambda turn, items, n_behind: True,
    ) -> None:
        """work(items) gives a result for each, and raises QclsError.

        max_batch: items that calls share a turn for; max_waiting: calls that may wait; joins(turn, items, n_behind):
        whether the items of a call may join a turn of other calls' items, where n_behind calls wait, this one among
        them.
        """
        self._work = work
        self._max_batch = max_batch
        self._max_waiting = max_waiting
        self._joins = joins
        self._waiting: deque[Call[Q, R]] = deque()
        self._turn: list[Call[Q, R]] = []  # what is being served, or was when an interrupt came
        self._is_closed = False
        self._turn_began_ns = 0
        self._answered: deque[Call[Q, R]] = deque()  # futures that their thread has to hand out
        self._thread: threading.Thread | None = None
        self._thread_gate = Gate()
        self._starting = threading.Lock()
        self.alone = threading.Lock()
        """Held while a turn is served; `with batcher.alone, batcher.inside:` does something else in between."""
        self.inside = threading.RLock()
        """Held with `alone`, and knows its thread: see `is_inside`."""
        _batchers.add(self)

    def submit(self, items: Sequence[Q], deadline_s: float | None = None) -> Sequence[R]:
        """The results of some items; the calling thread serves where nobody else does.

        deadline_s: seconds after which the items are not begun any more. Raises BusyError, DeadlineError, DecodeError
        where the batcher is closed, and what work raises.
        """
        is_late = deadline_s is not None and deadline_s <= 0
        if not (is_late or self._is_closed or self.alone.locked()):
            try:
                with self.alone, self.inside:
                    if not (self._waiting or self._turn):  # nobody is to be served first
                        return self._run(items)
            finally:
                self._wake_next()
        call = Call[Q, R](items, deadline_s, None)
        self._admit(call)
        try:
            while not call.is_done:
                if self.alone.locked():
                    if call.is_late:
                        raise call.late_error()
                    call.gate.wait(_LOOK_AGAIN_S)
                    continue
                with self.alone, self.inside:
                    if not call.is_done:
                        self._serve()
        finally:
            call.was_given_up = True
            self._forget(call)
            self._wake_next()
        if call.error is not None:
            raise call.error
        assert call.results is not None
        return call.results

    def submit_future(
        self, loop: AbstractEventLoop, items: Sequence[Q], deadline_s: float | None = None
    ) -> Future[Sequence[R]]:
        """The same for tasks of an event loop, in its thread: a thread of the batcher's own serves where nobody else
        does.

        A future that is cancelled before its turn is not computed. Raises BusyError, and DecodeError where the batcher
        is closed.
        """
        future: Future[Sequence[R]] = loop.create_future()
        call = Call[Q, R](items, deadline_s, future)
        self._admit(call)
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(
                    target=_serve_for_futures, args=(weakref.ref(self),), name="qcls-gguf engine", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError as e:
                    self._forget(call)
                    raise DecodeError(
                        f"no thread can be started to serve tasks ({e}): let the process have more"
                    ) from e
                self._thread = thread
        self._thread_gate.open()
        return future

    def _admit(self, call: Call[Q, R]) -> None:
        if self._is_closed:
            raise DecodeError("this Classifier is closed")
        if len(self._waiting) >= self._max_waiting and self.alone.locked():
            raise BusyError(
                f"{len(self._waiting)} callers wait already, as many as runtime.max_waiting allows: ask again "
                "later, or raise it"
            )
        self._waiting.append(call)

    def _forget(self, call: Call[Q, R]) -> None:
        with suppress(ValueError):  # whoever serves may have taken it off the list before its caller does
            self._waiting.remove(call)

    def _wake_next(self) -> None:
        """Whoever stops serving sees to it that somebody goes on."""
        if self._turn or self._waiting:
            for call in (*self._turn, *self._waiting):
                if call.is_open:
                    (self._thread_gate if call.future else call.gate).open()
                    return

    def _serve(self) -> None:
        """Answer the most urgent of those who wait, as many as one turn holds. The caller holds `alone`."""
        turn = self._turn
        turn[:] = [call for call in turn if call.is_open]
        queue = []
        for call in sorted(self._waiting.copy(), key=lambda call: call.order_ns):
            if call.is_open and call.is_late:
                self._finish(call, None, call.late_error())
            if call.is_open and call not in turn:  # an interrupt may have left it in both
                queue.append(call)
            else:
                self._forget(call)
        for index, call in enumerate(queue):
            if turn and not self._may_join(turn, call, len(queue) - index):
                break
            turn.append(call)
            self._forget(call)
        if turn:
            self._answer(turn)
        turn.clear()

    def _may_join(self, turn: Sequence[Call[Q, R]], call: Call[Q, R], n_behind: int) -> bool:
        items = [each.items for each in turn]
        n_items = sum(map(len, items)) + len(call.items)
        return n_items <= self._max_batch and self._joins(items, call.items, n_behind)

    def _answer(self, turn: Sequence[Call[Q, R]]) -> None:
        try:
            results = self._run([item for call in turn for item in call.items])
        except Exception as e:
            if len(turn) == 1:
                self._finish(turn[0], None, e)
                return
            for call in turn:  # each by itself, so that the error reaches the caller whose items raise it
                self._answer([call])
            return
        at = 0
        for call in turn:
            self._finish(call, results[at : at + len(call.items)])
            at += len(call.items)

    def _run(self, items: Sequence[Q]) -> Sequence[R]:
        self._turn_began_ns = perf_counter_ns()
        try:
            return self._work(items)
        finally:
            self._turn_began_ns = 0

    @property
    def turn_ms(self) -> float:
        """How long the turn that is served now has been; 0 where there is none."""
        began_ns = self._turn_began_ns
        return (perf_counter_ns() - began_ns) / 1e6 if began_ns else 0.0

    def _finish(self, call: Call[Q, R], results: Sequence[R] | None, error: Exception | None = None) -> None:
        call.results, call.error = results, error
        if call.future is None:
            call.gate.open()
        else:
            self._answered.append(call)
            self._thread_gate.open()

    def deliver(self) -> None:
        """Hand out what was answered for futures: each loop is woken once; for the batcher's thread."""
        by_loop: dict[AbstractEventLoop, list[Call[Q, R]]] = {}
        while self._answered:
            call = self._answered.popleft()
            assert call.future is not None
            by_loop.setdefault(call.future.get_loop(), []).append(call)
        for loop, calls in by_loop.items():
            with suppress(RuntimeError):  # a loop that was closed: nobody awaits them any more
                loop.call_soon_threadsafe(_settle, calls)

    def serve_waiting(self, *, deliver: bool = False) -> None:
        """Serve turn after turn until nobody waits. deliver: hand out each turn's futures before the next one."""
        while self._waiting or self._turn:
            with self.alone, self.inside:
                self._serve()
            if deliver:
                self.deliver()

    def between_turns(self, step: Callable[[], T]) -> T:
        """Serve one turn of those who wait, then do something else; long work in such steps holds nobody up for more
        than a step.
        """
        with self.alone, self.inside:
            self._serve()
            return step()

    def close(self) -> None:
        """Refuse who comes from now on, and answer those who wait; may be called again."""
        self._is_closed = True
        if not self.is_inside:
            self.serve_waiting()
        self._thread_gate.open()

    @property
    def is_inside(self) -> bool:
        """Whether this thread holds `alone`: a finaliser or a signal's handler may be called then, and would wait for
        its own thread.
        """
        return bool(self.inside._is_owned())  # type: ignore[attr-defined]  # as threading.Condition asks it

    @property
    def is_closed(self) -> bool:
        return self._is_closed


def _settle(calls: Sequence[Call[Any, Any]]) -> None:
    for call in calls:
        call.settle()


_batchers: weakref.WeakSet[Batcher[Any, Any]] = weakref.WeakSet()
os.register_at_fork(after_in_child=_batchers.clear)  # whose threads, and what these held, stayed with the parent


def _serve_for_futures(batcher_ref: weakref.ref[Batcher[Any, Any]]) -> None:
    while (batcher := batcher_ref()) is not None:
        gate = batcher._thread_gate
        batcher.serve_waiting(deliver=True)
        batcher.deliver()
        if batcher.is_closed:
            return
        del batcher  # so that it can be freed while nobody asks
        gate.wait(_THREAD_LOOKS_S)


@atexit.register
def _stop() -> None:
    """At the interpreter's exit let no decode run on: what it works with is taken down next."""
    for batcher in list(_batchers):
        batcher.alone.acquire(timeout=_EXIT_S)
