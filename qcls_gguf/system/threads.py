"""Starting threads, of which a process may have no more, and the Python that they need."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from ..errors import ConfigError, QclsError


def start(thread: threading.Thread, error: Callable[[str], QclsError], what_for: str) -> None:
    """Start a thread. what_for: such as `to load model.gguf`. Raises the error where there can be no more threads."""
    try:
        thread.start()
    except RuntimeError as e:
        raise error(f"no thread can be started {what_for} ({e}): raise the process's limit of threads") from e


def has_gil() -> bool:
    """Whether this Python runs one thread at a time, as all do but free-threaded ones."""
    return getattr(sys, "_is_gil_enabled", lambda: True)()


def check_gil() -> None:
    """Refuse a free-threaded Python, on which what threads share here changes while it is read. Raises ConfigError."""
    if not has_gil():
        raise ConfigError(
            "this Python runs without its global interpreter lock (GIL), which threads need here: "
            "start it with PYTHON_GIL=1 or -X gil=1"
        )
