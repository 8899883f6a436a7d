"""The batcher and calls of event loops: alone, beside threads, and as it closes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from batcher_calls import Work
from loop_thread import LoopThread
from waiting import until

from qcls_gguf.engine.batcher import Batcher
from qcls_gguf.errors import DeadlineError, DecodeError, PlanError, QclsError


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    with LoopThread() as loop:
        yield loop


def test_closing_answers_who_waits_and_refuses_who_comes(loop: LoopThread) -> None:
    """It returns though others never stop asking."""

    def work(queries: Sequence[str]) -> list[str]:
        time.sleep(0.001)
        return list(queries)

    batcher = Batcher(work, max_batch=4, max_waiting=9)
    n_answered = [0] * 4

    def caller(index: int) -> str:
        while True:
            try:
                assert batcher.submit([str(index)]) == [str(index)]
            except QclsError as e:
                return str(e)
            n_answered[index] += 1

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(caller, index) for index in range(4)]
        until(lambda: min(n_answered) > 3)
        batcher.close()
        assert {future.result(10) for future in futures} == {"this Classifier is closed"}
    with pytest.raises(DecodeError, match="closed"):
        loop.submit(batcher, ["a"])
    batcher.close()


def test_futures_are_served_by_a_thread_of_their_own(loop: LoopThread) -> None:
    work = Work()
    batcher = Batcher(work, max_batch=2, max_waiting=9)
    futures = [loop.submit(batcher, ["a"])]
    assert work.began.wait(10)
    futures += [loop.submit(batcher, [query]) for query in ("b", "gone", "bad d", "e")]
    late = loop.submit(batcher, ["late"], 0)
    assert loop.run(futures[2].cancel)
    work.go_on.set()
    assert [loop.result(futures[index]) for index in (0, 1, 4)] == [["A"], ["B"], ["E"]]
    with pytest.raises(PlanError, match="bad d is bad"):
        loop.result(futures[3])
    with pytest.raises(DeadlineError):
        loop.result(late)
    assert not any("gone" in turn or "late" in turn for turn in work.turns)
    batcher.close()


def test_futures_get_their_answers_while_others_still_wait(loop: LoopThread) -> None:
    began, go_on = {query: threading.Event() for query in "ab"}, {query: threading.Event() for query in "ab"}

    def work(queries: Sequence[str]) -> list[str]:
        began[queries[0]].set()
        assert go_on[queries[0]].wait(10)
        return [query.upper() for query in queries]

    batcher = Batcher(work, max_batch=1, max_waiting=9)
    first = loop.submit(batcher, ["a"])
    assert began["a"].wait(10)
    second = loop.submit(batcher, ["b"])
    go_on["a"].set()
    assert began["b"].wait(10)
    assert loop.result(first) == ["A"]
    assert not second.done()
    go_on["b"].set()
    assert loop.result(second) == ["B"]
    batcher.close()


def test_blocking_callers_and_futures_share_turns(loop: LoopThread) -> None:
    work = Work()
    batcher = Batcher(work, max_batch=4, max_waiting=9)
    with ThreadPoolExecutor(2) as pool:
        first = loop.submit(batcher, ["a"])
        assert work.began.wait(10)
        blocking = pool.submit(batcher.submit, ["b"])
        until(lambda: len(batcher._waiting) == 1)
        future = loop.submit(batcher, ["c"])
        work.go_on.set()
        assert (loop.result(first), blocking.result(10), loop.result(future)) == (["A"], ["B"], ["C"])
    assert work.turns == [["a"], ["b", "c"]]
    batcher.close()


def test_who_has_less_time_goes_first_then_who_came_first(loop: LoopThread) -> None:
    work = Work()
    batcher = Batcher(work, max_batch=1, max_waiting=9)
    futures = [loop.submit(batcher, ["first"])]
    assert work.began.wait(10)
    for query, deadline_s in (("b", 100), ("none", None), ("soon", 9), ("c", 50), ("sooner", 5), ("later", 20)):
        futures.append(loop.submit(batcher, [query], deadline_s))
    work.go_on.set()
    for future in futures:
        loop.result(future)
    # deadlines beyond ten seconds are not urgent, and not passed for ever either
    assert work.turns == [["first"], ["sooner"], ["soon"], ["b"], ["none"], ["c"], ["later"]]
    batcher.close()


def test_those_who_wait_have_a_turn_before_a_step(loop: LoopThread) -> None:
    done: list[str] = []

    def work(queries: Sequence[str]) -> list[str]:
        done.extend(queries)
        return list(queries)

    batcher = Batcher(work, max_batch=1, max_waiting=9)
    with batcher.alone:
        futures = [loop.submit(batcher, [query]) for query in ("a", "b")]
        stepping = threading.Thread(target=lambda: batcher.between_turns(lambda: done.append("step")))
        stepping.start()
    stepping.join()
    assert [loop.result(future) for future in futures] == [["a"], ["b"]]
    assert done.index("a") < done.index("step")
    batcher.close()


def test_a_loop_that_was_closed_holds_nobody_up(loop: LoopThread) -> None:
    batcher = Batcher[int, int](lambda items: [item + 1 for item in items], max_batch=1, max_waiting=8)
    gone = asyncio.new_event_loop()
    with batcher.alone:
        lost, other = batcher.submit_future(gone, [1]), loop.submit(batcher, [2])
        gone.close()
    assert loop.result(other) == [3]
    assert not lost.done()
    batcher.close()
