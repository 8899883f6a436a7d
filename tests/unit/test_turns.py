"""Turns: who goes with whom, in what order, and what an error or an interrupt of one means for the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from qcls_gguf.engine.batcher import Turns
from qcls_gguf.errors import BusyError, PlanError


class Interrupt(BaseException):
    """As KeyboardInterrupt, for a thread that is not the main one."""


class Work:
    """Answers a query by its capitals; holds its first turn until told to go on."""

    def __init__(self) -> None:
        self.turns: list[list[str]] = []
        self.began, self.go_on = threading.Event(), threading.Event()

    def __call__(self, queries: Sequence[str]) -> list[str]:
        self.turns.append(list(queries))
        if len(self.turns) == 1:
            self.began.set()
            assert self.go_on.wait(10)
        if "stop" in queries:
            raise Interrupt
        for query in queries:
            if query.startswith("bad"):
                raise PlanError(f"{query} is bad")
        return [query.upper() for query in queries]


def gather(
    calls: Sequence[Sequence[str]], *, max_batch: int = 4, max_waiting: int = 64
) -> tuple[Work, list[Future[tuple[Sequence[str], float]]]]:
    """The first call begins; the others come one after the other while it works; then it goes on."""
    work = Work()
    turns = Turns(work, max_batch=max_batch, max_waiting=max_waiting)
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(turns.submit, calls[0])]
        assert work.began.wait(10)
        for call in calls[1:]:
            n = len(turns._waiting)
            futures.append(pool.submit(turns.submit, call))
            until(lambda n=n, last=futures[-1]: len(turns._waiting) > n or last.done())  # type: ignore[misc]
        work.go_on.set()
    return work, futures


def until(true: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if true():
            return
        time.sleep(0.001)
    raise AssertionError("it did not come to that")


def test_one_caller_works_at_once() -> None:
    work = Work()
    work.go_on.set()
    results, wait_ms = Turns(work, max_batch=4, max_waiting=0).submit(["a", "b"])
    assert (results, work.turns) == (["A", "B"], [["a", "b"]])
    assert wait_ms < 1000


def test_those_who_wait_go_together_in_their_order() -> None:
    work, futures = gather([["a"], ["b"], ["c"], ["d"], ["e"], ["f"]])
    assert work.turns == [["a"], ["b", "c", "d", "e"], ["f"]]
    assert [future.result()[0] for future in futures] == [["A"], ["B"], ["C"], ["D"], ["E"], ["F"]]
    assert all(future.result()[1] > 0 for future in futures)


def test_calls_are_not_split() -> None:
    work, futures = gather([["a"], ["b", "c", "d"], ["e", "f"], ["g"], [*"hijklm"], ["n"]])
    assert work.turns == [["a"], ["b", "c", "d"], ["e", "f", "g"], [*"hijklm"], ["n"]]
    assert [len(future.result()[0]) for future in futures] == [1, 3, 2, 1, 6, 1]


def test_too_many_callers_are_refused() -> None:
    work, futures = gather([["a"], ["b"], ["c"], ["d"]], max_waiting=2)
    with pytest.raises(BusyError, match=r"2 callers wait already.*max_waiting"):
        futures[3].result()
    assert work.turns == [["a"], ["b", "c"]]
    assert futures[2].result()[0] == ["C"]


def test_an_error_is_its_own_callers() -> None:
    _, futures = gather([["a"], ["b"], ["bad c"], ["d"]])
    assert [futures[i].result()[0] for i in (0, 1, 3)] == [["A"], ["B"], ["D"]]
    with pytest.raises(PlanError, match="bad c is bad"):
        futures[2].result()


def test_an_error_of_the_first_leaves_the_others_their_turn() -> None:
    _, futures = gather([["bad a"], ["b"]])
    with pytest.raises(PlanError, match="bad a"):
        futures[0].result()
    assert futures[1].result()[0] == ["B"]


def test_an_interrupt_ends_one_call_only() -> None:
    work, futures = gather([["a"], ["stop"], ["c"], ["d"]])
    interrupted = [future for future in futures[1:] if isinstance(future.exception(), Interrupt)]
    # whoever leads is interrupted; what its turn held is answered by others, and so is `stop` if it was not its own
    assert len(interrupted) >= 1
    assert futures[0].result()[0] == ["A"]
    assert all(future.done() for future in futures)
    assert len(work.turns) < 8


def test_a_turn_for_something_else() -> None:
    work = Work()
    work.go_on.set()
    turns = Turns(work, max_batch=4, max_waiting=4)
    with ThreadPoolExecutor(1) as pool:
        with turns.alone():
            future = pool.submit(turns.submit, ["a"])
            until(lambda: len(turns._waiting) == 1)
            assert work.turns == []
        assert future.result(10)[0] == ["A"]


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
    taken = Turns(work, max_batch=4, max_waiting=9)
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(taken.submit, ["a"])]
        assert began.wait(10)
        futures += [pool.submit(taken.submit, [query]) for query in ("b", "odd", "c")]
        until(lambda: len(taken._waiting) == 3)
        go_on.set()
    assert [futures[i].result()[0] for i in (0, 1, 3)] == [["A"], ["B"], ["C"]]
    with pytest.raises(ValueError, match="odd"):
        futures[2].result()
