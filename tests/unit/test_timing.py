"""Steps on a clock that the tests set."""

from __future__ import annotations

import pytest

from qcls_gguf import timing
from qcls_gguf.timing import Ledger


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
