"""The one queue of an engine, and the one thread that serves it.

Any thread puts jobs into the queue; only the executor thread takes them, and only it touches the engine. This is also
what keeps interrupts harmless: Python delivers signals to the main thread alone, so none comes between two changes of
the engine, and nobody who waits holds a lock that the executor needs. It costs two wake-ups of a thread a request:
0.07 to 0.12 ms where a request of the embedded joint configuration takes 6 (two busy cores).

Jobs are served by their deadlines, then by arrival. A turn takes the first job and as many of the next ones as may join
it, if that saves time by the measured cost of a decode; no job is held back to wait for others.
"""

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from queue import SimpleQueue
from time import perf_counter, perf_counter_ns
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..errors import BusyError, DeadlineError, DecodeError, PlanError
from ..score.result import Result
from ..system.lifetimes import start_thread

if TYPE_CHECKING:  # callers that await have imported asyncio; others need not
    from asyncio import Future

R = TypeVar("R")

_USUAL_S = 10.0
"""Seconds. Jobs with a later deadline, or none, are ordered as if they had this one, so that none waits forever."""
_EXIT_S = 60.0
"""Seconds that the interpreter's exit waits for a decode to end."""
_CLOSED = "this Classifier is closed"
_LETTERS = [chr(n) for n in range(ord("a"), ord("z") + 1)]
_PROBE_WORDS = 6
"""words per probe query"""
_N_ROUNDS = 8
_MOST_S = 0.5
"""Seconds after which no further round begins."""


def pays_to_join(fixed_tokens: float, n_in_turn: int, n_tokens: int, n_waiting: int) -> bool:
    """Whether a waiting job should join the turn of n_in_turn others, rather than begin the next turn.

    If it joins, all others also wait for its n_tokens. In return it and all jobs after it, n_waiting together, save the
    fixed part of a decode. It joins if that makes the total waiting time shorter.
    """
    return n_in_turn * n_tokens <= n_waiting * fixed_tokens


def fixed_tokens(few: tuple[int, float], many: tuple[int, float]) -> float:
    """The fixed part of a decode's time, as the number of tokens that take as long.

    few, many: the (tokens, time) of two decodes; every token is taken to add as much.
    """
    n_more, longer = many[0] - few[0], many[1] - few[1]
    if n_more <= 0 or longer <= 0:  # more tokens in no more time
        return inf
    return max(0.0, few[1] * n_more / longer - few[0])


def measured_fixed_tokens(ask: Callable[[Sequence[str]], Sequence[Result]], max_batch: int) -> float:
    """`fixed_tokens` of the shortest decodes of one query and of max_batch queries, run in turns.

    ask(queries) answers them together. 0, so that no decode is shared, if max_batch is 1 or short queries are too long
    for the configuration.
    """
    n_queries = min(max_batch, len(_LETTERS) - _PROBE_WORDS)
    queries = [" ".join(_LETTERS[n : n + _PROBE_WORDS]) for n in range(n_queries)]
    if n_queries < 2:
        return 0.0
    shortest: dict[int, float] = {}
    until = perf_counter() + _MOST_S
    for n_round in range(_N_ROUNDS):
        for asked in (queries[:1], queries):
            began = perf_counter()
            try:
                n_tokens = ask(asked)[0].counts.n_tokens_new
            except PlanError:  # in some vocabulary these queries have more tokens than are allowed
                return 0.0
            took = perf_counter() - began
            if n_round:  # the first one makes plans and graphs
                shortest[n_tokens] = min(took, shortest.get(n_tokens, took))
        if n_round and perf_counter() > until:
            break
    least, most = min(shortest), max(shortest)
    return fixed_tokens((least, shortest[least]), (most, shortest[most]))


class Job(Generic[R]):
    """A request to the executor: to answer items, or to run an action between turns. Its caller waits for it."""

    def __init__(
        self,
        items: Sequence[Any] = (),
        deadline_s: float | None = None,
        *,
        plan: Any = None,
        action: Callable[[], R] | None = None,
        future: "Future[R] | None" = None,
    ) -> None:
        """deadline_s: a job that has not begun after so many seconds is not computed; plan: how to decode the items, in
        a turn without other jobs; action: what to run between two turns, instead of items; future: receives the result
        in its event loop; None: `result` waits for it.
        """
        self.items = items
        self.plan = plan
        self.action = action
        self.future = future
        self.value: R | None = None
        self.error: BaseException | None = None
        self.has_begun = self.is_given_up = False
        self.arrived_ns = perf_counter_ns()
        self.deadline_ns = None if deadline_s is None else self.arrived_ns + int(deadline_s * 1e9)
        self.order_ns = self.arrived_ns + int(min(_USUAL_S if deadline_s is None else deadline_s, _USUAL_S) * 1e9)
        self._done = threading.Lock()  # released once, when the result is there
        self._done.acquire()

    def result(self) -> R:
        """Wait for the result. Raises DeadlineError where it has not begun in time, and what computing it raised."""
        try:
            if self.deadline_ns is not None:
                left_s = max(0.0, (self.deadline_ns - perf_counter_ns()) / 1e9)
                if not self._done.acquire(timeout=min(left_s, threading.TIMEOUT_MAX)):
                    if not self.has_begun:
                        raise self.late_error()
                    self._done.acquire()
            else:
                self._done.acquire()
        finally:
            self.is_given_up = True  # of no effect if it is done
        if (error := self.error) is not None:
            try:
                raise error
            finally:
                self.error = error = None  # its traceback has this frame
        return self.value  # type: ignore[return-value]

    def late_error(self) -> DeadlineError:
        """The error for a job whose deadline has passed."""
        waited_ms = (perf_counter_ns() - self.arrived_ns) / 1e6
        return DeadlineError(f"the deadline passed after {waited_ms:.0f} ms of waiting: it was not computed")

    def finish(self, value: R | None, error: BaseException | None = None) -> None:
        """Give the result, or the error in its place, to the caller. Only for the executor."""
        self.value, self.error = value, error
        if self.future is None:
            self._done.release()
        else:
            with suppress(RuntimeError):  # the loop was closed: nothing awaits it any more
                self.future.get_loop().call_soon_threadsafe(self._settle, self.future)

    def _settle(self, future: "Future[R]") -> None:
        """Give the result to whoever awaits it, in the thread of its event loop."""
        if future.done():
            return
        if self.error is not None:
            future.set_exception(self.error)
        else:
            future.set_result(self.value)  # type: ignore[arg-type]


class Executor:
    """Serves jobs in turns, in a thread of its own."""

    def __init__(
        self,
        step: Callable[[Sequence[Job[Any]]], Sequence[Any]],
        *,
        max_waiting: int,
        joins: Callable[[Sequence[Job[Any]], Job[Any], int], bool],
    ) -> None:
        """step(turn) returns the results of a turn's jobs; max_waiting: how many jobs may wait; joins(turn, job,
        n_waiting): whether a job may join a turn of others, while n_waiting jobs wait, including this one.

        Raises DecodeError if the process cannot start another thread.
        """
        self._step = step
        self._max_waiting = max_waiting
        self._joins = joins
        self._inbox: SimpleQueue[Job[Any]] = SimpleQueue()
        self._waiting: list[Job[Any]] = []  # only the executor thread changes it
        self._turn_began_ns = 0
        self.is_of_this_process = True
        """False in a process that was forked from the one in which it was made; there nothing is computed."""
        self.is_closed = self._is_ending = self._has_ended = False
        self._thread = threading.Thread(
            target=_serve, args=(weakref.ref(self), self._inbox), name="qcls-gguf engine", daemon=True
        )
        start_thread(self._thread, DecodeError, "to serve requests")
        self._ident = self._thread.ident
        # When the executor is garbage-collected, a job wakes its thread, which then ends.
        weakref.finalize(self, self._inbox.put, Job()).atexit = False
        _executors.add(self)

    def check(self) -> None:
        """Raise DecodeError if a job that the calling thread puts into the queue could never be served."""
        if not self.is_of_this_process:
            raise DecodeError("this Classifier was made in another process: make one in every process after forking")
        if threading.get_ident() == self._ident:
            what = "this Classifier is used by a finaliser that runs in the middle of one of its requests"
            raise DecodeError(f"{what}: do it outside of finalisers")
        if self.is_closed:
            raise DecodeError(_CLOSED)

    def put(self, job: Job[Any]) -> None:
        """Put a job into the queue. Raises BusyError if too many wait, DecodeError if it can never be served."""
        if self.is_closed or self._ident == threading.get_ident():
            self.check()
        n = len(self._waiting) + self._inbox.qsize()
        if n >= self._max_waiting and self._turn_began_ns and job.action is None:
            what = f"{n} callers wait already, as many as runtime.max_waiting allows"
            raise BusyError(f"{what}: ask again later, or raise it")
        self._inbox.put(job)
        if self._has_ended:  # it was closed in the meantime
            raise DecodeError(_CLOSED)

    def run(self, action: Callable[[], R]) -> R:
        """Run an action between two turns and return its result. Raises DecodeError as `put` does."""
        job: Job[R] = Job(action=action)
        self.put(job)
        return job.result()

    def close(self, free: Callable[[], None]) -> None:
        """Refuse new jobs, serve the waiting ones, then call `free` and end the thread. May be called again.

        In a forked process, and in the executor's own thread (where a finaliser may call it), nothing is freed.
        """
        if not self.is_of_this_process:
            return
        self.is_closed = True
        if threading.get_ident() == self._ident or self._has_ended:
            return

        def end() -> None:
            self._has_ended = True
            free()

        if not self._is_ending:
            self._is_ending = True
            job: Job[None] = Job(action=end)
            job.order_ns = 1 << 62  # after all others
            self._inbox.put(job)
        self._thread.join()

    def serve(self, job: Job[Any]) -> bool:
        """Serve this job and all waiting ones, in turns; only for the executor thread. Returns whether it ends."""
        self._waiting.append(job)
        while self._waiting:
            while not self._inbox.empty():
                self._waiting.append(self._inbox.get())
            if turn := self._take():
                self._serve_turn(turn)
        if self._has_ended:
            while not self._inbox.empty():  # `put` refuses later jobs
                self._inbox.get().finish(None, DecodeError(_CLOSED))
        return self._has_ended

    def _take(self) -> list[Job[Any]]:
        """The jobs of the next turn, taken from the waiting ones."""
        queue = self._waiting
        if len(queue) > 1:
            queue.sort(key=lambda job: job.order_ns)
        now_ns = perf_counter_ns()
        open_jobs: list[Job[Any]] = []
        for job in queue:
            if job.is_given_up if job.future is None else job.future.cancelled():
                continue
            if job.deadline_ns is not None and now_ns >= job.deadline_ns:
                job.finish(None, job.late_error())
            else:
                open_jobs.append(job)
        turn = open_jobs[:1]
        for index, job in enumerate(open_jobs[1:], 1):
            if not self._joins(turn, job, len(open_jobs) - index):
                break
            turn.append(job)
        for job in turn:
            job.has_begun = True
        self._waiting = open_jobs[len(turn) :]
        return turn

    def _serve_turn(self, turn: Sequence[Job[Any]]) -> None:
        self._turn_began_ns = perf_counter_ns()
        try:
            results = self._step(turn)
        except BaseException as e:  # whatever it is, the thread goes on
            if len(turn) > 1:  # one by one, so that the error reaches the caller whose items raise it
                for job in turn:
                    self._serve_turn([job])
                return
            turn[0].finish(None, e)
        else:
            for job, result in zip(turn, results, strict=True):
                job.finish(result)
        finally:
            self._turn_began_ns = 0


def _serve(executor_ref: weakref.ref[Executor], inbox: SimpleQueue[Job[Any]]) -> None:
    """Serve jobs until the executor is closed or garbage-collected."""
    while True:
        job = inbox.get()
        executor = executor_ref()
        if executor is None or executor.serve(job):
            return
        del executor, job  # so that they can be freed while the thread waits


_executors: weakref.WeakSet[Executor] = weakref.WeakSet()


def _give_up_all() -> None:
    """In a forked process, which does not have the executors' threads."""
    for executor in list(_executors):
        executor.is_closed, executor.is_of_this_process = True, False
    _executors.clear()


os.register_at_fork(after_in_child=_give_up_all)


@atexit.register
def _stop() -> None:
    """At the interpreter's exit wait for running decodes, because the objects that they use are destroyed next."""
    for executor in list(_executors):
        executor.is_closed = True
        job: Job[None] = Job(action=lambda: None)
        executor._inbox.put(job)
        if not executor._has_ended:
            job._done.acquire(timeout=_EXIT_S)
