"""The batcher: who goes with whom, in what order, and what an error or an interrupt of one means for the others."""

from __future__ import annotations

import ctypes
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from batcher_calls import Interrupt, Work, gather
from waiting import until

from qcls_gguf.engine.batcher import Batcher
from qcls_gguf.errors import BusyError, DeadlineError, PlanError


def test_one_caller_works_at_once() -> None:
    work = Work()
    work.go_on.set()
    results = Batcher(work, max_batch=4, max_waiting=0).submit(["a", "b"])
    assert (results, work.turns) == (["A", "B"], [["a", "b"]])


class Changing(deque[Any]):
    """A queue that others change while it is read, as a free-threaded Python lets them."""

    n_reads = 0

    def __iter__(self) -> Iterator[Any]:
        self.n_reads += 1
        if self.n_reads % 2:
            raise RuntimeError("deque mutated during iteration")
        return super().__iter__()


def test_callers_may_come_while_those_who_wait_are_read() -> None:
    work = Work()
    batcher = Batcher(work, max_batch=4, max_waiting=4)
    batcher._waiting = queue = Changing()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(batcher.submit, ["a"])
        assert work.began.wait(10)
        second = pool.submit(batcher.submit, ["b"])
        until(lambda: len(queue) == 1)
        work.go_on.set()
    assert (first.result(), second.result()) == (["A"], ["B"])
    assert queue.n_reads > 0


def test_those_who_wait_go_together_in_their_order() -> None:
    work, futures = gather([["a"], ["b"], ["c"], ["d"], ["e"], ["f"]])
    assert work.turns == [["a"], ["b", "c", "d", "e"], ["f"]]
    assert [future.result() for future in futures] == [["A"], ["B"], ["C"], ["D"], ["E"], ["F"]]


def test_calls_are_not_split() -> None:
    work, futures = gather([["a"], ["b", "c", "d"], ["e", "f"], ["g"], [*"hijklm"], ["n"]])
    assert work.turns == [["a"], ["b", "c", "d"], ["e", "f", "g"], [*"hijklm"], ["n"]]
    assert [len(future.result()) for future in futures] == [1, 3, 2, 1, 6, 1]


def test_too_many_callers_are_refused() -> None:
    work, futures = gather([["a"], ["b"], ["c"], ["d"]], max_waiting=2)
    with pytest.raises(BusyError, match=r"2 callers wait already.*max_waiting"):
        futures[3].result()
    assert work.turns == [["a"], ["b", "c"]]
    assert futures[2].result() == ["C"]


def test_an_error_is_its_own_callers() -> None:
    _, futures = gather([["a"], ["b"], ["bad c"], ["d"]])
    assert [futures[i].result() for i in (0, 1, 3)] == [["A"], ["B"], ["D"]]
    with pytest.raises(PlanError, match="bad c is bad"):
        futures[2].result()


def test_an_error_of_the_first_leaves_the_others_their_turn() -> None:
    _, futures = gather([["bad a"], ["b"]])
    with pytest.raises(PlanError, match="bad a"):
        futures[0].result()
    assert futures[1].result() == ["B"]


def test_an_interrupt_ends_one_call_only() -> None:
    work, futures = gather([["a"], ["stop"], ["c"], ["d"]])
    interrupted = [future for future in futures[1:] if isinstance(future.exception(), Interrupt)]
    # whoever leads is interrupted; what its turn held is answered by others, and so is `stop` if it was not its own
    assert len(interrupted) >= 1
    assert futures[0].result() == ["A"]
    assert all(future.done() for future in futures)
    assert len(work.turns) < 8


def test_a_turn_for_something_else() -> None:
    work = Work()
    work.go_on.set()
    batcher = Batcher(work, max_batch=4, max_waiting=4)
    with ThreadPoolExecutor(1) as pool:
        with batcher.alone:
            future = pool.submit(batcher.submit, ["a"])
            until(lambda: len(batcher._waiting) == 1)
            assert work.turns == []
        assert future.result(10) == ["A"]


def test_an_unexpected_error_is_its_own_callers() -> None:
    def work(queries: Sequence[str]) -> list[str]:
        turns.append(list(queries))
        if len(turns) == 1:
            began.set()
            assert go_on.wait(10)
        if "odd" in queries:
            raise ValueError("odd")
        return [query.upper() for query in queries]

    turns: list[list[str]] = []
    began, go_on = threading.Event(), threading.Event()
    batcher = Batcher(work, max_batch=4, max_waiting=9)
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(batcher.submit, ["a"])]
        assert began.wait(10)
        futures += [pool.submit(batcher.submit, [query]) for query in ("b", "odd", "c")]
        until(lambda: len(batcher._waiting) == 3)
        go_on.set()
    assert [futures[i].result() for i in (0, 1, 3)] == [["A"], ["B"], ["C"]]
    with pytest.raises(ValueError, match="odd"):
        futures[2].result()


def test_an_answer_does_not_wait_for_the_turns_of_others() -> None:
    """Whoever serves hands each answer out when its turn ends, though its own call comes later."""
    last_began, last_goes_on = threading.Event(), threading.Event()

    def work(queries: Sequence[str]) -> list[str]:
        if queries == ["last"]:
            last_began.set()
            assert last_goes_on.wait(10)
        return [query.upper() for query in queries]

    batcher = Batcher(work, max_batch=1, max_waiting=9)
    with ThreadPoolExecutor(3) as pool:
        with batcher.alone:
            futures = []
            for n, query in enumerate(("first", "second", "last"), 1):
                futures.append(pool.submit(batcher.submit, [query]))
                until(lambda n=n: len(batcher._waiting) == n)  # type: ignore[misc]
        assert last_began.wait(10)
        assert [future.result(10) for future in futures[:2]] == [["FIRST"], ["SECOND"]]
        last_goes_on.set()
        assert futures[2].result(10) == ["LAST"]


@pytest.mark.parametrize("n_threads", [8, 24])
def test_every_thread_is_served_alike(n_threads: int) -> None:
    """First come, first served: while all ask again at once, whoever waits sees each of the others go once."""
    n_done = [0] * n_threads
    n_turns_waited: Counter[object] = Counter()

    def work(queries: Sequence[str]) -> list[str]:
        n_turns_waited.update(batcher._waiting.copy())
        time.sleep(0.0005)
        return list(queries)

    batcher = Batcher(work, max_batch=1, max_waiting=n_threads)
    together = threading.Barrier(n_threads)

    def caller(index: int) -> None:
        together.wait(10)
        for _ in range(30):
            assert batcher.submit([str(index)]) == [str(index)]
            n_done[index] += 1

    with ThreadPoolExecutor(n_threads) as pool:
        for future in [pool.submit(caller, index) for index in range(n_threads)]:
            future.result(60)
    assert n_done == [30] * n_threads
    # or twice: one that came before may be stopped by the system before it is listed
    assert max(n_turns_waited.values()) <= 2 * n_threads


def test_a_call_that_is_late_is_not_computed() -> None:
    work = Work()
    batcher = Batcher(work, max_batch=1, max_waiting=9)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(batcher.submit, ["a"])
        assert work.began.wait(10)
        late = pool.submit(batcher.submit, ["b"], 0.01)
        with pytest.raises(DeadlineError, match=r"deadline passed after \d+ ms of waiting: nothing was computed"):
            late.result(10)  # while the first is still served
        in_time = pool.submit(batcher.submit, ["c"], 100)
        work.go_on.set()
        assert (first.result(10), in_time.result(10)) == (["A"], ["C"])
    assert work.turns == [["a"], ["c"]]


def test_a_call_joins_where_it_is_let() -> None:
    def joins(turn: Sequence[Sequence[str]], items: Sequence[str], n_behind: int) -> bool:
        asked.append(([*turn], [*items], n_behind))
        return not any(each.startswith("own") for call in (*turn, items) for each in call)

    asked: list[tuple[list[Sequence[str]], list[str], int]] = []
    work = Work()
    batcher = Batcher(work, max_batch=4, max_waiting=9, joins=joins)
    with ThreadPoolExecutor(6) as pool:
        futures = [pool.submit(batcher.submit, ["a"])]
        assert work.began.wait(10)
        for n, query in enumerate(("b", "c", "own d", "own e", "f"), 1):
            futures.append(pool.submit(batcher.submit, [query]))
            until(lambda n=n: len(batcher._waiting) == n)  # type: ignore[misc]
        work.go_on.set()
        for future in futures:
            future.result(10)
    assert work.turns == [["a"], ["b", "c"], ["own d"], ["own e"], ["f"]]
    assert asked[:2] == [([["b"]], ["c"], 4), ([["b"], ["c"]], ["own d"], 3)]


def test_a_signals_handler_knows_the_turn_as_soon_as_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a request of the handler is refused, and does not wait for its own thread."""
    batcher = Batcher(Work(), max_batch=4, max_waiting=9)
    found: list[bool] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: found.append(batcher.is_inside))
    raised = partial(getattr(ctypes.CDLL(None), "raise"), signal.SIGUSR1)  # Python's own would run the handler at once
    monkeypatch.setattr(batcher, "alone", SimpleNamespace(acquire=raised, release=lambda: None))
    try:
        assert batcher.run_alone(lambda: "done") == "done"
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert found == [True]
    assert not batcher.is_inside


def test_interrupts_anywhere_lock_nobody_out() -> None:
    """Signals come at random moments of the main thread's calls, while another thread asks as well."""
    n_interrupts = n_answers = 0
    is_armed = False
    ended = threading.Event()

    def work(queries: Sequence[str]) -> list[str]:
        return [query.upper() for query in queries]

    batcher = Batcher(work, max_batch=4, max_waiting=9)

    def other() -> int:
        n = 0
        while not ended.is_set():
            assert batcher.submit(["b"]) == ["B"]
            n += 1
        return n

    def interrupt(*_: object) -> None:
        nonlocal is_armed
        if is_armed:  # else it was on its way when the timer was stopped
            is_armed = False
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    random = Random(7)
    try:
        with ThreadPoolExecutor(1) as pool:
            others = pool.submit(other)
            while n_interrupts < 2000:
                try:
                    is_armed = True
                    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 3e-4))
                    for _ in range(50):
                        assert batcher.submit(["a"]) == ["A"]
                        n_answers += 1
                    is_armed = False
                except KeyboardInterrupt:
                    n_interrupts += 1
            ended.set()
            assert others.result(10) > 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        ended.set()
    assert n_answers > 0
    assert batcher.submit(["a"]) == ["A"]
    batcher.close()
