"""Stages and steps on a clock that the tests set."""

from __future__ import annotations

import pytest

from qcls_gguf import timing
from qcls_gguf.timing import STAGES, Ledger, Stopwatch


class Clock:
    """Time passes only by `advance`."""

    def __init__(self) -> None:
        self.now_ns = 5_000_000_000

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, ms: float) -> None:
        self.now_ns += round(ms * 1e6)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timing, "perf_counter_ns", clock)
    return clock


def test_every_millisecond_belongs_to_the_stage_that_it_ends_in(clock: Clock) -> None:
    watch = Stopwatch()
    for stage, ms in (("tokenize", 1.5), ("plan", 0.25), ("decode", 10), ("cleanup", 0), ("decode", 4), ("score", 2)):
        clock.advance(ms)
        watch.mark(stage)
    assert watch.stage_ms == {"tokenize": 1.5, "plan": 0.25, "batch": 0, "decode": 14, "score": 2, "cleanup": 0}
    assert tuple(watch.stage_ms) == STAGES
    assert watch.total_ms == 17.75


def test_time_that_no_mark_ended_is_not_counted(clock: Clock) -> None:
    watch = Stopwatch()
    clock.advance(3)
    assert watch.total_ms == 0


def test_moved_time_changes_its_stage_and_not_the_total(clock: Clock) -> None:
    watch = Stopwatch()
    clock.advance(10)
    watch.mark("decode")
    watch.move("decode", "batch", 1_500)
    watch.move("decode", "batch", 500)
    assert watch.stage_ms["decode"] == 8
    assert watch.stage_ms["batch"] == 2
    assert watch.total_ms == 10


def test_an_unknown_stage_is_an_error(clock: Clock) -> None:
    with pytest.raises(KeyError, match="warm"):
        Stopwatch().mark("warm")


def test_stopwatches_share_no_stages(clock: Clock) -> None:
    first, second = Stopwatch(), Stopwatch()
    clock.advance(1)
    first.mark("plan")
    assert second.total_ms == 0


def test_a_ledger_lists_its_steps_in_order(clock: Clock) -> None:
    ledger = Ledger()
    clock.advance(2)
    ledger.step("load model", "a file")
    clock.advance(0.5)
    ledger.step("find model", "another")
    assert list(ledger.steps_ms.items()) == [("load model", 2), ("find model", 0.5)]


def test_a_ledger_tells_each_step_as_it_ends(clock: Clock) -> None:
    told: list[tuple[str, str, float]] = []
    ledger = Ledger(lambda step, what, ms: told.append((step, what, ms)))
    clock.advance(2)
    ledger.step("load model", "a file")
    assert told == [("load model", "a file", 2)]
    clock.advance(1)
    ledger.step("warm-up", "one request")
    assert told[1:] == [("warm-up", "one request", 1)]


def test_the_real_clock_runs_forward() -> None:
    watch = Stopwatch()
    watch.mark("plan")
    assert watch.total_ms > 0
