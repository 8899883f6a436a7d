"""Where the time goes: stages of a request, steps of a start-up."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns

STAGES = ("tokenize", "plan", "batch", "decode", "score", "cleanup")


class Stopwatch:
    """Times consecutive stages; every nanosecond since the start belongs to one of them, but for pauses."""

    def __init__(self) -> None:
        self.stage_ms = dict.fromkeys(STAGES, 0.0)
        self._last = perf_counter_ns()

    def mark(self, stage: str) -> None:
        """Count the time since the last mark to a stage."""
        now = perf_counter_ns()
        self.stage_ms[stage] += (now - self._last) / 1e6
        self._last = now

    def go_on(self) -> None:
        """Let the time since the last mark, in which other work was done, belong to no stage."""
        self._last = perf_counter_ns()

    def move(self, source: str, target: str, us: int) -> None:
        """Count part of a stage's time, as the native library measured it, to another stage."""
        self.stage_ms[source] -= us / 1e3
        self.stage_ms[target] += us / 1e3

    @property
    def total_ms(self) -> float:
        return sum(self.stage_ms.values())


class Ledger:
    """The steps of a start-up, in order, with their milliseconds."""

    def __init__(self, on_step: Callable[[str, str, float], None] | None = None) -> None:
        """on_step(step, what, ms) is called as each step ends."""
        self.steps_ms: dict[str, float] = {}
        self._on_step = on_step
        self._last = perf_counter_ns()

    def step(self, name: str, what: str) -> None:
        """Count the time since the last step to this one; `what` says in words what was done."""
        now = perf_counter_ns()
        self.steps_ms[name] = (now - self._last) / 1e6
        self._last = now
        if self._on_step:
            self._on_step(name, what, self.steps_ms[name])
