"""What commands that work for long have in common: a bar for each part, and files that are written in the end."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..errors import ConfigError
from ..report.progress import OnProgress


def check_html(path: Path, others: Mapping[str, Path | None]) -> None:
    """Refuse a report that could not be written, before anything is computed for it; others: see check_writable."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--html needs matplotlib: pip install 'qcls-gguf[report]'")
    check_writable(path, "--html", others)


def check_writable(path: Path, option: str, others: Mapping[str, Path | None], *, force: bool = True) -> None:
    """Refuse a file that could not be written, or is another file of the command, before anything is computed for it.

    others: files by the options that name them; force: whether what is there may be overwritten. Raises ConfigError.
    """
    try:
        for name, other in others.items():
            if other is not None and _is_same(path, other):
                raise ConfigError(f"{option} {path}: is the file of {name}: name another")
        if path.exists():
            if not force:
                raise ConfigError(f"{option} {path}: is there already: name another file, or overwrite it with --force")
            path.open("a").close()
        else:
            path.open("x").close()
            path.unlink()  # what fails later leaves nothing
    except OSError as e:
        raise ConfigError(f"{option} {path}: cannot be written: {e.strerror}") from None


def _is_same(path: Path, other: Path) -> bool:
    """Whether two names are of one file, which need not be there."""
    if os.path.realpath(path) == os.path.realpath(other):
        return True
    return path.exists() and other.exists() and path.samefile(other)


@contextmanager
def progress_bars(quiet: bool) -> Iterator[OnProgress]:
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
