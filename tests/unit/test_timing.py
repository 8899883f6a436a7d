"""Steps on a clock that the tests set."""

from __future__ import annotations

import pytest

from qcls_gguf.system import timing
from qcls_gguf.system.timing import Ledger


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


def test_a_ledger_lists_its_steps_in_order_and_tells_each_as_it_ends(clock: Clock) -> None:
    told: list[tuple[str, str, float]] = []
    ledger = Ledger(lambda step, what, ms: told.append((step, what, ms)))
    for step, what, ms in (("load model", "a file", 2), ("find model", "another", 0.5)):
        clock.advance(ms)
        ledger.step(step, what)
        assert told[-1] == (step, what, ms)
    assert list(ledger.steps_ms.items()) == [("load model", 2), ("find model", 0.5)]
