"""The queue: who goes with whom, in what order, and what an error or an interrupt of one means for the others."""

import asyncio
import gc
import signal
import threading
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from math import inf
from random import Random
from typing import Any

import pytest
from cases import cases
from waiting import occupied, until

from qcls_gguf.core.queue import Executor, Job, fixed_tokens, pays_to_join
from qcls_gguf.errors import BusyError, DeadlineError, DecodeError, PlanError, QclsError

Answer = Future[list[str]]


class Asked:
    """An executor that answers texts by their capitals, no more than four of several callers in a turn."""

    def __init__(self, *, max_batch: int = 4, max_waiting: int = 64) -> None:
        self.turns: list[list[str]] = []
        self.n_behind: list[int] = []
        self._max_batch = max_batch
        self.executor = Executor(self._step, max_waiting=max_waiting, joins=self._joins)
        self._pool = ThreadPoolExecutor(32)

    def _step(self, turn: Sequence[Job[Any]]) -> list[Any]:
        if turn[0].action:
            return [turn[0].action()]
        texts = [text for job in turn for text in job.items]
        self.turns.append(texts)
        for text in texts:
            if text.startswith("bad"):
                raise PlanError(f"{text} is bad")
            if text == "odd":
                raise ValueError(text)
        return [[text.upper() for text in job.items] for job in turn]

    def _joins(self, turn: Sequence[Job[Any]], job: Job[Any], n_behind: int) -> bool:
        self.n_behind.append(n_behind)
        jobs = [*turn, job]
        own = any(each.action or "own" in each.items for each in jobs)
        return not own and sum(len(each.items) for each in jobs) <= self._max_batch

    def ask(self, *texts: str, deadline_s: float | None = None) -> list[str]:
        """Ask and wait."""
        job = Job[list[str]](texts, deadline_s)
        self.executor.put(job)
        return job.result()

    def later(self, *texts: str, deadline_s: float | None = None) -> Answer:
        """Ask in another thread, after those that were asked before."""
        n = self.n_waiting
        answer: Answer = self._pool.submit(self.ask, *texts, deadline_s=deadline_s)
        until(lambda: self.n_waiting > n or answer.done())
        return answer

    @property
    def n_waiting(self) -> int:
        return len(self.executor._waiting) + self.executor._inbox.qsize()

    def close(self) -> None:
        self.executor.close(lambda: None)
        self._pool.shutdown()


@pytest.fixture
def asked() -> Iterator[Asked]:
    asked = Asked()
    yield asked
    asked.close()


def answers_of(asked: Asked, calls: Sequence[Sequence[str]]) -> list[Answer]:
    """Callers that come one after the other while nobody is served."""
    with occupied(asked.executor):
        answers = [asked.later(*call) for call in calls]
    for answer in answers:
        answer.exception(10)
    return answers


def test_callers_who_wait_go_together_in_their_order_and_are_not_split(asked: Asked) -> None:
    calls = ["a", "bcd", "ef", "g", "hijklm", "n"]
    assert [answer.result() for answer in answers_of(asked, calls)] == [[*call.upper()] for call in calls]
    assert asked.turns == [[*"abcd"], [*"efg"], [*"hijklm"], ["n"]]


def test_a_job_joins_where_it_is_let(asked: Asked) -> None:
    answers_of(asked, [["b"], ["c"], ["own"], ["own"], ["f"]])
    assert (asked.turns, asked.n_behind[:2]) == ([["b", "c"], ["own"], ["own"], ["f"]], [4, 3])


def test_too_many_callers_are_refused() -> None:
    asked = Asked(max_waiting=2)
    *served, refused = answers_of(asked, "abc")
    with pytest.raises(BusyError, match=r"2 callers wait already.*max_waiting"):
        refused.result()
    assert [answer.result() for answer in served] == [["A"], ["B"]]
    asked.close()


@pytest.mark.parametrize(("bad", "error"), [("bad", PlanError), ("odd", ValueError)])
@pytest.mark.parametrize("place", [0, 2])
def test_an_error_is_its_own_callers(bad: str, error: type[Exception], place: int, asked: Asked) -> None:
    calls = [["a"], ["b"], ["c"]]
    calls.insert(place, [bad])
    answers = answers_of(asked, calls)
    with pytest.raises(error, match=bad):
        answers.pop(place).result()
    assert [answer.result() for answer in answers] == [["A"], ["B"], ["C"]]


def test_a_job_that_is_late_is_not_computed(asked: Asked) -> None:
    with occupied(asked.executor):
        late = asked.later("b", deadline_s=0.01)
        with pytest.raises(DeadlineError, match=r"deadline passed after \d+ ms of waiting: it was not computed"):
            late.result(10)  # while nobody is served
        in_time = asked.later("c", deadline_s=100)
    assert in_time.result(10) == ["C"]
    with pytest.raises(DeadlineError):
        asked.ask("d", deadline_s=0)
    assert asked.turns == [["c"]]


def test_less_time_goes_first_then_who_came_first() -> None:
    asked = Asked(max_batch=1)
    deadlines = {"b": 100, "none": None, "soon": 9, "c": 50, "sooner": 5, "later": 20}
    with occupied(asked.executor):
        for text, deadline_s in deadlines.items():
            asked.later(text, deadline_s=deadline_s)
    asked.close()
    # deadlines beyond ten seconds are not urgent, and not passed for ever either
    assert asked.turns == [["sooner"], ["soon"], ["b"], ["none"], ["c"], ["later"]]


def test_actions_run_between_turns_in_their_order(asked: Asked) -> None:
    with ThreadPoolExecutor(1) as pool, occupied(asked.executor):
        before = asked.later("a")
        action = pool.submit(asked.executor.run, lambda: [*asked.turns])
        until(lambda: asked.n_waiting == 2)
        after = asked.later("b")
    assert (before.result(10), after.result(10), action.result(10)) == (["A"], ["B"], [["a"]])
    with pytest.raises(ZeroDivisionError):
        asked.executor.run(lambda: 1 / 0)


def test_interrupts_anywhere_lock_nobody_out(asked: Asked) -> None:
    """Signals come at random moments of the main thread's calls, while another thread asks as well."""
    n_interrupts = n_answers = 0
    is_armed = False
    ended = threading.Event()

    def other() -> int:
        n = 0
        while not ended.is_set():
            assert asked.ask("b") == ["B"]
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
                        assert asked.ask(f"a{n_answers}") == [f"A{n_answers}"]
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
    assert asked.ask("a") == ["A"]


def test_closing_answers_who_waits_and_refuses_who_comes() -> None:
    """It returns though others never stop asking, and frees once, after the last answer."""
    asked = Asked()
    n_answered, n_freed = [0] * 4, []

    def caller(index: int) -> str:
        while True:
            try:
                assert asked.ask(str(index)) == [str(index)]
            except QclsError as e:
                return str(e)
            n_answered[index] += 1

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(caller, index) for index in range(4)]
        until(lambda: min(n_answered) > 3)
        for _ in range(2):
            asked.executor.close(lambda: n_freed.append(sum(n_answered)))
        assert {future.result(10) for future in futures} == {"this Classifier is closed"}
    assert len(n_freed) == 1
    with pytest.raises(DecodeError, match="closed"):
        asked.executor.run(lambda: None)


def test_what_the_executors_thread_asks_of_itself_is_refused(asked: Asked) -> None:
    """As a finaliser does that runs there."""

    def ask() -> None:
        with pytest.raises(DecodeError, match="by a finaliser that runs in the middle of one of its requests"):
            asked.ask("a")
        asked.executor.close(lambda: None)  # frees nothing now

    asked.executor.run(ask)
    with pytest.raises(DecodeError, match="closed"):
        asked.ask("a")


def test_an_executor_that_nobody_has_ends_its_thread() -> None:
    asked = Asked()
    thread, executor = asked.executor._thread, weakref.ref(asked.executor)
    assert asked.ask("a") == ["A"]
    asked._pool.shutdown()
    del asked
    gc.collect()
    assert executor() is None
    thread.join(10)
    assert not thread.is_alive()


def test_event_loops_get_their_answers_beside_threads(asked: Asked) -> None:
    async def ask() -> None:
        loop = asyncio.get_running_loop()

        def later(text: str, deadline_s: float | None = None) -> asyncio.Future[list[str]]:
            job = Job[list[str]]([text], deadline_s, future=loop.create_future())
            asked.executor.put(job)
            assert job.future is not None
            return job.future

        with occupied(asked.executor):
            closed_loop = asyncio.new_event_loop()
            asked.executor.put(Job(["lost"], future=closed_loop.create_future()))  # which holds nobody up
            closed_loop.close()
            first, gone, bad, late, last = map(later, ("a", "gone", "bad", "late", "e"), (None, None, None, 0, None))
            blocking = asked.later("b")
            gone.cancel()
        assert (await first, await last) == (["A"], ["E"])
        with pytest.raises(PlanError, match="bad is bad"):
            await bad
        with pytest.raises(DeadlineError):
            await late
        assert await asyncio.to_thread(blocking.result, 10) == ["B"]

    asyncio.run(ask())
    assert not any(text in turn for turn in asked.turns for text in ("gone", "late"))


def waiting(fixed: float, n_calls: int, n_tokens: int, first: int) -> float:
    """The waiting of all calls, in tokens, where the first `first` of them share a decode and the others do not."""
    first_ends = fixed + first * n_tokens
    return first * first_ends + sum(first_ends + (n + 1) * (fixed + n_tokens) for n in range(n_calls - first))


@pytest.mark.parametrize("fixed", [0.0, 3.0, 20.0, 26.0, 60.0, 500.0])  # 26: all wait equally long
@pytest.mark.parametrize("n_calls", [2, 3, 5, 12])
def test_a_call_joins_where_all_wait_less_for_it(fixed: float, n_calls: int) -> None:
    n_tokens = 26
    for in_turn in range(1, n_calls):
        apart, joined = (waiting(fixed, n_calls, n_tokens, n) for n in (in_turn, in_turn + 1))
        assert pays_to_join(fixed, in_turn, n_tokens, n_calls - in_turn) == (joined <= apart)


@cases(((50, 6.0), 10.0), ((50, 4.0), 30.0), ((50, 10.0), 0.0), ((50, 1.5), inf), ((10, 9.0), inf))
def test_the_fixed_part_is_where_the_line_of_two_decodes_begins(many: tuple[int, float], fixed: float) -> None:
    """Of a decode of 10 tokens in 2 ms and another; where more tokens take no longer, sharing always pays."""
    assert fixed_tokens((10, 2.0), many) == pytest.approx(fixed)
