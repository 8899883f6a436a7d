"""Starting threads, of which a process may have no more."""

from __future__ import annotations

import threading
from collections.abc import Callable

from .errors import QclsError


def start(thread: threading.Thread, error: Callable[[str], QclsError], what_for: str) -> None:
    """Start a thread. what_for: such as `to load model.gguf`. Raises the error where there can be no more threads."""
    try:
        thread.start()
    except RuntimeError as e:
        raise error(f"no thread can be started {what_for} ({e}): raise the process's limit of threads") from e
