"""Where the time goes: stages of a request, steps of a start-up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Timer
from time import perf_counter_ns

_LONG_S = 1.0
STAGES = ("tokenize", "plan", "batch", "decode", "score", "cleanup")


class Ledger:
    """The steps of a start-up, in order, with their milliseconds."""

    def __init__(self, on_step: Callable[[str, str, float], None] | None = None) -> None:
        """on_step(step, what, ms) is called as each step ends, and before if it takes long; see `at_work`."""
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

    @contextmanager
    def at_work(self, name: str, what: str) -> Iterator[None]:
        """Tell of a step that is at work for more than a second: on_step is called once from another thread."""

        def tell() -> None:
            with suppress(Exception):  # which on_step raises to stop the thread that works
                if self._on_step:
                    self._on_step(name, f"{what}, at work …", _LONG_S * 1e3)

        timer = Timer(_LONG_S, tell)
        timer.daemon = True
        try:
            if self._on_step:
                timer.start()
            yield
        finally:
            timer.cancel()
