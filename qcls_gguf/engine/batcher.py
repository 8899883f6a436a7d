"""The queue of an engine: callers of several threads wait for turns, and share them.

Callers queue by their deadlines, then by arrival. A turn takes the first caller and as many of the next ones as may
join it; no caller is held back to wait for others. The thread that holds the lock `alone` serves the turn: the caller
that finds the engine idle, then one of the waiting callers; or, for callers that do not block, the batcher's thread.

No other lock is ever held, and this one is taken and noted in one step of the interpreter, so an interrupt
(KeyboardInterrupt) may come anywhere: the calls of an interrupted turn stay listed and are served by the next one.
"""

from __future__ import annotations

import atexit
import operator
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from ..errors import BusyError, DecodeError
from ..system.threads import start
from .call import Call, Gate, Taker

if TYPE_CHECKING:  # callers that await have imported asyncio; others need not
    from asyncio import AbstractEventLoop, Future

Q = TypeVar("Q")
R = TypeVar("R")
T = TypeVar("T")
P = ParamSpec("P")

_LOOK_AGAIN_S = 0.1
"""How often a waiting caller checks whether a thread serves: an interrupt may have stopped the one that wakes it."""
_THREAD_LOOKS_S = 1.0
_EXIT_S = 60.0
"""How long the interpreter's exit waits for a decode to end, in seconds."""


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
        """work(items) returns a result for each item, or raises QclsError.

        max_batch: most items of a turn that several calls share; max_waiting: most calls that wait; joins(turn, items,
        n_behind): whether the items of a call may join a turn of other calls' items, while n_behind calls wait,
        including this one.
        """
        self._work = work
        self._max_batch = max_batch
        self._max_waiting = max_waiting
        self._joins = joins
        self._waiting: deque[Call[Q, R]] = deque()
        self._turn: list[Call[Q, R]] = []  # the calls being served, or those left by an interrupt
        self._is_closed = False
        self._turn_began_ns = 0
        self._answered: deque[Call[Q, R]] = deque()  # calls with a taker, to which the batcher's thread delivers
        self._thread: threading.Thread | None = None
        self._thread_gate = Gate()
        self._starting = threading.Lock()
        self.alone = threading.Lock()
        """Held while a turn is served, and by `run_alone`."""
        self._holder = 0  # the thread that holds it
        _batchers.add(self)

    def submit(self, items: Sequence[Q], deadline_s: float | None = None) -> Sequence[R]:
        """The results of some items; the calling thread serves them if no other thread does.

        deadline_s: seconds after which the items are not begun any more. Raises BusyError, DeadlineError, DecodeError
        if the batcher is closed, and what work raises.
        """
        is_late = deadline_s is not None and deadline_s <= 0
        if not (is_late or self._is_closed or self.alone.locked()):
            try:
                results = self.run_alone(self._run_first, items)
            finally:
                self._wake_next()
            if results is not None:
                return results
        call: Call[Q, R] = Call(items, deadline_s, Gate())
        self._admit(call)
        try:
            while not call.is_done:
                if self.alone.locked():
                    if call.is_late:
                        raise call.late_error()
                    call.gate.wait(_LOOK_AGAIN_S)
                    continue
                self.run_alone(self._serve, call)
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
        """`submit` for tasks of an event loop, called in its thread; see `submit_for`."""
        future: Future[Sequence[R]] = loop.create_future()
        self.submit_for(future, items, deadline_s)
        return future

    def submit_for(self, taker: Taker[Sequence[R]], items: Sequence[Q], deadline_s: float | None = None) -> None:
        """`submit` without waiting: the taker gets the answer later, in the thread of its event loop. The batcher's own
        thread serves if no other thread does.

        A call whose taker is cancelled before its turn is not computed. Raises BusyError, and DecodeError if the
        batcher is closed.
        """
        call: Call[Q, R] = Call(items, deadline_s, self._thread_gate, taker)
        self._admit(call)
        if self._thread is None:
            try:
                self._start_thread()
            except DecodeError:
                self._forget(call)
                raise
        self._thread_gate.open()

    def _start_thread(self) -> None:
        """Start the batcher's own thread. Raises DecodeError if the process cannot start another thread."""
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(
                    target=_serve_for_takers, args=(weakref.ref(self),), name="qcls-gguf engine", daemon=True
                )
                start(thread, DecodeError, "to serve tasks")
                self._thread = thread

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
        with suppress(ValueError):  # the serving thread may already have removed it
            self._waiting.remove(call)

    def _all_waiting(self) -> Sequence[Call[Q, R]]:
        """Those that wait. A free-threaded Python, with its GIL or without, lets others change them meanwhile."""
        while True:
            try:
                return list(self._waiting)
            except RuntimeError:
                continue

    def _wake_next(self) -> None:
        """Wake the next waiting caller, which then serves."""
        if self._turn or self._waiting:
            for call in (*self._turn, *self._all_waiting()):
                if call.is_open:
                    call.gate.open()
                    return

    def _serve(self, own: Call[Q, R] | None = None) -> None:
        """Serve one turn of the most urgent waiting calls. own: do nothing if this call is already done."""
        if own is not None and own.is_done:
            return
        turn = self._turn
        turn[:] = [call for call in turn if call.is_open]
        queue = []
        for call in sorted(self._all_waiting(), key=lambda call: call.order_ns):
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

    def _run_first(self, items: Sequence[Q]) -> Sequence[R] | None:
        """The results of some items; None if waiting calls come first."""
        return None if self._waiting or self._turn else self._run(items)

    def _run(self, items: Sequence[Q]) -> Sequence[R]:
        self._turn_began_ns = perf_counter_ns()
        try:
            return self._work(items)
        finally:
            self._turn_began_ns = 0

    @property
    def turn_ms(self) -> float:
        """Milliseconds since the current turn began; 0 if there is none."""
        began_ns = self._turn_began_ns
        return (perf_counter_ns() - began_ns) / 1e6 if began_ns else 0.0

    def _finish(self, call: Call[Q, R], results: Sequence[R] | None, error: Exception | None = None) -> None:
        call.results, call.error = results, error
        if call.taker is not None:
            self._answered.append(call)
            if threading.current_thread() is self._thread:  # it delivers when it has served
                return
        call.gate.open()

    def deliver(self) -> None:
        """Deliver answers to takers, waking each event loop once. Only for the batcher's thread."""
        by_loop: dict[AbstractEventLoop, list[Call[Q, R]]] = {}
        while self._answered:
            call = self._answered.popleft()
            assert call.taker is not None
            by_loop.setdefault(call.taker.get_loop(), []).append(call)
        for loop, calls in by_loop.items():
            with suppress(RuntimeError):  # a loop that was closed: nobody awaits them any more
                loop.call_soon_threadsafe(_settle, calls)

    def serve_waiting(self) -> None:
        """Serve turn after turn until nobody waits."""
        while self._waiting or self._turn:
            self.run_alone(self._serve)

    def serve_and_deliver(self) -> None:
        """`serve_waiting`, delivering each turn's answers before the next turn. Only for the batcher's thread."""
        self.deliver()
        while self._waiting or self._turn:
            self.run_alone(self._serve)
            self.deliver()

    def between_turns(self, step: Callable[[], T]) -> T:
        """Serve one turn of waiting calls, then run a step of other work. Long work that is divided into such steps
        delays callers by one step at most.
        """

        def turn_and_step() -> T:
            self._serve()
            return step()

        return self.run_alone(turn_and_step)

    def run_alone(self, action: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an action between two turns and return its result. The action must not call the batcher."""
        steps: tuple[Callable[[], object], ...] = (
            self.alone.acquire,
            partial(setattr, self, "_holder", threading.get_ident()),
        )
        held: list[object] = []
        try:
            # Interrupts and handlers of signals come behind calls, from Python 3.14 on also behind the one with which
            # `with` takes a lock. This one call notes, before it ends, that the lock is taken, and by whom: otherwise
            # nobody would release it, or a handler that asks would wait for its own thread.
            held.extend(map(operator.call, steps))
            return action(*args, **kwargs)
        finally:
            if held:
                self._holder = 0
                self.alone.release()

    def close(self) -> None:
        """Refuse new calls, and serve those that wait. May be called again."""
        self._is_closed = True
        if not self.is_inside:
            self.serve_waiting()
        self._thread_gate.open()

    @property
    def is_inside(self) -> bool:
        """Whether this thread holds `alone`, as in a finaliser or signal handler that runs during a turn; waiting for
        the lock would then never end.
        """
        return self._holder == threading.get_ident()

    @property
    def is_closed(self) -> bool:
        return self._is_closed


def _settle(calls: Sequence[Call[Any, Any]]) -> None:
    for call in calls:
        call.settle()


_batchers: weakref.WeakSet[Batcher[Any, Any]] = weakref.WeakSet()
os.register_at_fork(after_in_child=_batchers.clear)  # the child has neither their threads nor the locks that these held


def _serve_for_takers(batcher_ref: weakref.ref[Batcher[Any, Any]]) -> None:
    while (batcher := batcher_ref()) is not None:
        gate, is_closed = batcher._thread_gate, batcher.is_closed
        batcher.serve_and_deliver()
        if is_closed:
            return
        # The woken event loop needs the GIL, which this thread holds until it waits: do little before that.
        del batcher  # so that it can be freed while the thread waits
        gate.wait(_THREAD_LOOKS_S)


@atexit.register
def _stop() -> None:
    """At the interpreter's exit wait for running decodes, because the objects that they use are destroyed next."""
    for batcher in list(_batchers):
        batcher.alone.acquire(timeout=_EXIT_S)
