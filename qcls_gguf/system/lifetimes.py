"""How long things live and take: what is closed, threads that start, steps of a start-up."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Timer
from time import perf_counter_ns
from typing import Self

from ..errors import ConfigError, QclsError


class Closing:
    """Base of objects that hold memory or files until they are closed."""

    def close(self) -> None:
        """Free what it holds; may be called again."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start_thread(thread: threading.Thread, error: Callable[[str], QclsError], what_for: str) -> None:
    """Start a thread. what_for: such as `to load model.gguf`. Raises the error where there can be no more threads."""
    try:
        thread.start()
    except RuntimeError as e:
        raise error(f"no thread can be started {what_for} ({e}): raise the process's limit of threads") from e


def check_gil() -> None:
    """Refuse a free-threaded Python, on which what threads share here changes while it is read. Raises ConfigError."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise ConfigError(
            "this Python runs without its global interpreter lock (GIL), which threads need here: "
            "start it with PYTHON_GIL=1 or -X gil=1"
        )


OnStep = Callable[[str, str, float], None]
"""(name of a step of the start-up, what it did, milliseconds)"""
_LONG_S = 1.0


class Ledger:
    """The steps of a start-up, in order, with their milliseconds."""

    def __init__(self, on_step: OnStep | None = None) -> None:
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
