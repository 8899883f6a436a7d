"""What commands that work for long have in common: how they open classifiers and show their progress, and the check of
an HTML report."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..errors import ConfigError
from ..opening import ClassifierOpener
from ..report.files import check_writable
from ..report.progress import OnProgress
from .terminal import load_bar, print_step, print_warning


def check_html(path: Path, others: Mapping[str, Path | None]) -> None:
    """Raise ConfigError for a report that could not be written, before anything is computed; see check_writable."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--html needs matplotlib: pip install 'qcls-gguf[report]'")
    check_writable(path, "--html", others)


@contextmanager
def long_work(offline: bool, quiet: bool) -> Iterator[tuple[ClassifierOpener, OnProgress]]:
    """What opens classifiers, with warnings and the steps of start-ups on the terminal, and what shows progress there.

    offline: models of the hub come from the local cache only; quiet: warnings alone are shown.
    """
    with classifier_opener(offline, quiet) as opener, progress_bars(quiet) as on_progress:
        yield opener, on_progress


def classifier_opener(offline: bool, quiet: bool) -> ClassifierOpener:
    """What opens classifiers, with warnings and, unless quiet, the steps of start-ups on the terminal."""
    on_step = None if quiet else print_step
    return ClassifierOpener(offline=offline, on_step=on_step, on_load=load_bar(quiet), on_warning=print_warning)


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
