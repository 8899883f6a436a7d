"""The common behaviour of all commands: text encoding, exit codes, messages, progress, and printing the record."""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import signal
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from ..config.words import printable_lines
from ..errors import ConfigError, ModelError, QclsError
from ..report.files import check_writable
from .signals import SIGNALLED, Stoppable, stopped_line

if TYPE_CHECKING:
    from ..opening import ClassifierOpener, OnProgress

EXIT_OTHER, EXIT_USAGE, EXIT_MODEL = 1, 2, 3
_LOST = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO, errno.EBADF)
_LONGEST_WARNING = 140
_EXITS = {ConfigError: EXIT_USAGE, ModelError: EXIT_MODEL}
OPTIONS: set[str] = set()
"""the options of all commands, such as --data"""
_QUOTED = re.compile(r"`([a-z_]+)`")


@contextmanager
def exit_codes() -> Iterator[None]:
    """Print UTF-8, and turn what ends a command early into a line on standard error and its exit code."""
    _open_streams()
    with Stoppable() as stoppable:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = print_warning  # type: ignore[assignment]
                yield
                sys.stdout.flush()
        except BaseException as e:
            # What imports and callbacks make of the interrupt may be any exception.
            stopped_by = signal.SIGINT if isinstance(e, KeyboardInterrupt) else None
            if (number := stoppable.number or stopped_by) is not None:
                print(stopped_line(number), end="", file=sys.stderr)
                raise typer.Exit(SIGNALLED + number) from None
            _end(e)


def _open_streams() -> None:
    """Set the streams to UTF-8. If the parent process has closed standard output, writing to it raises an error."""
    for name, errors in (("stdin", "surrogateescape"), ("stdout", "backslashreplace"), ("stderr", "backslashreplace")):
        stream = getattr(sys, name)
        if stream is None:
            flags = os.O_WRONLY if name == "stderr" else os.O_RDONLY
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), "r" if name == "stdin" else "w"))
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors=errors)


def _end(error: BaseException) -> NoReturn:
    """Print the error that ended a command, and exit; re-raise errors that are not ours."""
    if isinstance(error, BrokenPipeError):
        _drop_output()  # the reader has closed the pipe
        raise typer.Exit(0) from None
    if isinstance(error, OSError):
        _drop_output()
        # Whatever else is written names its file.
        is_output = error.filename is None and error.errno in _LOST
        _fail(f"standard output could not be written: {error.strerror}" if is_output else error, EXIT_OTHER)
    if isinstance(error, QclsError):
        _fail(error, next((code for kind, code in _EXITS.items() if isinstance(error, kind)), EXIT_OTHER))
    raise error


@contextmanager
def flushed() -> Iterator[None]:
    """Write what was printed before the interpreter does it at its exit, where a failure prints a traceback."""
    _open_streams()
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        sys.exit(0)
    except OSError as e:
        _drop_output()
        print(f"qcls-gguf: standard output could not be written: {e.strerror}", file=sys.stderr)
        sys.exit(EXIT_OTHER)


def with_options(message: str) -> str:
    """The message in the words of the command line: names of settings in backquotes, such as `data`, become options."""

    def option(match: re.Match[str]) -> str:
        names = (f"--{name.replace('_', '-')}" for name in (match[1], match[1].removeprefix("n_")))
        return next((name for name in names if name in OPTIONS), match[0])

    return _QUOTED.sub(option, message)


def _shown(message: object) -> str:
    """A message, which may quote a file, a query or another server, without what would move the cursor."""
    return printable_lines(with_options(str(message)))


def _drop_output() -> None:
    """Keep the flush at exit from failing again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(error: Exception | str, code: int) -> NoReturn:
    print(f"qcls-gguf: {_shown(error)}", file=sys.stderr)
    try:
        sys.stdout.flush()
    except OSError:  # which was told
        _drop_output()
    raise typer.Exit(code)


def say(text: str) -> None:
    """Print a line on standard error. Where that is a file on a full disk the line is lost, and nothing else."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def print_step(name: str, what: str, ms: float) -> None:
    """Show a step of the start-up as it ends."""
    say(f"{name:16}{ms:10.1f} ms  {_shown(what)}")


def print_warning(mistake: object, *_: object) -> None:
    """Show what is likely a mistake."""
    say(f"qcls-gguf: warning: {_shown(mistake)}")


def _print_mistake(mistake: object) -> None:
    print_warning(textwrap.shorten(str(mistake), _LONGEST_WARNING, placeholder=" … (inspect says more)"))


def load_bar(quiet: bool) -> Callable[[float], None] | None:
    """A percentage on the terminal while a large model loads."""
    if quiet or not sys.stderr.isatty():
        return None

    def show(fraction: float) -> None:
        # the line is overwritten by the step's own line
        print(f"\rload model {fraction:6.0%}", end="\r" if fraction < 1 else "\r\033[K", file=sys.stderr, flush=True)

    return show


def classifier_opener(offline: bool, quiet: bool, *, warns: bool = True) -> ClassifierOpener:
    """An opener of classifiers that shows likely mistakes and the steps of start-ups on the terminal unless quiet.

    offline: models of the hub come from the local cache only; warns: whether likely mistakes are shown.
    """
    from ..opening import ClassifierOpener

    on_step, on_warning = None if quiet else print_step, _print_mistake if warns and not quiet else None
    return ClassifierOpener(offline=offline, on_step=on_step, on_load=load_bar(quiet), on_warning=on_warning)


@contextmanager
def long_work(offline: bool, quiet: bool) -> Iterator[ClassifierOpener]:
    """The same, which also shows how far the work has come."""
    with classifier_opener(offline, quiet) as opener, progress_bars(quiet) as opener.on_progress:
        yield opener


@contextmanager
def progress_bars(quiet: bool) -> Iterator[OnProgress]:
    """A bar on the terminal for each part of the work; it appears with the first (part, done, total)."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    shown = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=shown, transient=True, disable=quiet or not shown.is_terminal) as bars:
        tasks = {}

        def on_progress(part: str, done: int, total: int) -> None:
            if part not in tasks:
                tasks[part] = bars.add_task(part, total=total)
            bars.update(tasks[part], completed=done)

        yield on_progress


def needs(feature: str, package: str, extra: str) -> None:
    """Raise ConfigError where a package that comes with an extra of ours is not installed."""
    if importlib.util.find_spec(package) is None:
        raise ConfigError(f"{feature} needs {package}: pip install 'qcls-gguf[{extra}]'")


def check_outputs(
    outputs: Mapping[str, Path | None], inputs: Mapping[str, str | Path | None], *, force: bool = True
) -> None:
    """Raise ConfigError for a file that could not be written, before anything is computed; by options."""
    others = {name: None if path is None else Path(path) for name, path in inputs.items()}
    for name, path in outputs.items():
        if path is not None:
            check_writable(path, name, others, force=force)
            others[name] = path
