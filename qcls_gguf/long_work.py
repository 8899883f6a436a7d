"""What commands that work for long have in common: a bar for each part, and files that are written in the end."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .errors import ConfigError


def check_html(path: Path) -> None:
    """Refuse a report that could not be written, before anything is computed for it."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--html needs matplotlib: pip install 'qcls-gguf[report]'")
    check_writable(path, "--html")


def check_writable(path: Path, option: str) -> None:
    """Refuse a file that could not be written, before anything is computed for it."""
    try:
        path.open("a").close()
    except OSError as e:
        raise ConfigError(f"{option} {path}: cannot be written: {e.strerror}") from None


@contextmanager
def progress_bars(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on the terminal for each part of the work; it appears with the first (part, done, total)."""
    shown = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=shown, transient=True, disable=quiet or not shown.is_terminal) as bars:
        tasks = {}

        def on_progress(part: str, done: int, total: int) -> None:
            if part not in tasks:
                tasks[part] = bars.add_task(part, total=total)
            bars.update(tasks[part], completed=done)

        yield on_progress
