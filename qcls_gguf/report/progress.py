"""How far long work has come, as a command shows it."""

from __future__ import annotations

from collections.abc import Callable

OnProgress = Callable[[str, int, int], None]
"""(part, done, total)"""


def counter(on_progress: OnProgress, part: str, total: int) -> Callable[[], None]:
    """Counts a part's steps up to total."""
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        on_progress(part, done, total)

    return count
