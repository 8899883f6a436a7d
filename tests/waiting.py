"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(true: Callable[[], object], *, most_s: float = 10.0) -> None:
    """Look again and again; AssertionError where it has not come to that after so many seconds."""
    end = time.monotonic() + most_s
    while not true():
        assert time.monotonic() < end, f"waited for {most_s} seconds in vain"
        time.sleep(0.005)
