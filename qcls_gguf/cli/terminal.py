"""The common behaviour of all commands: text encoding, exit codes, messages, progress, and printing the record."""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ..config.words import printable_lines
from ..errors import ConfigError, ModelError, QclsError
from ..report.files import write_file

if TYPE_CHECKING:
    from ..opening import ClassifierOpener
    from ..report.record import Record

EXIT_OTHER = 1
_LOST = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO, errno.EBADF)
OPTIONS: set[str] = set()
"""of the command that runs, such as --data"""
_QUOTED = re.compile(r"`([a-z_]+)`")


@contextmanager
def exit_codes() -> Iterator[None]:
    """Print UTF-8, and turn an error that ends a command into a line on standard error and its exit code."""
    _open_streams()
    try:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = print_warning  # type: ignore[assignment]
                yield
        finally:
            sys.stdout.flush()  # before the interpreter does it at its exit, where a failure prints a traceback
    except BrokenPipeError:
        _end(0)  # the reader has closed the pipe
    except OSError as e:
        # Whatever else is written names its file.
        is_output = e.filename is None and e.errno in _LOST
        _end(EXIT_OTHER, f"standard output could not be written: {e.strerror}" if is_output else str(e))
    except QclsError as e:
        say(f"qcls-gguf: {shown(e)}")
        sys.exit(2 if isinstance(e, ConfigError) else 3 if isinstance(e, ModelError) else EXIT_OTHER)


def _end(code: int, message: str = "") -> NoReturn:
    """End where standard output is lost, without another failure to flush it at the exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if message:
        say(f"qcls-gguf: {shown(message)}")
    sys.exit(code)


def _open_streams() -> None:
    """Set the streams to UTF-8. If the parent process has closed standard output, writing to it raises an error."""
    for name, errors in (("stdin", "surrogateescape"), ("stdout", "backslashreplace"), ("stderr", "backslashreplace")):
        stream = getattr(sys, name)
        if stream is None:
            flags = os.O_WRONLY if name == "stderr" else os.O_RDONLY
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), "r" if name == "stdin" else "w"))
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors=errors)


def with_options(message: str) -> str:
    """The message in the words of the command line: names of settings in backquotes, such as `data`, become options of
    the command that runs.
    """

    def option(match: re.Match[str]) -> str:
        names = (f"--{name.replace('_', '-')}" for name in (match[1], match[1].removeprefix("n_")))
        return next((name for name in names if name in OPTIONS), match[0])

    return _QUOTED.sub(option, message)


def shown(message: object) -> str:
    """A message, which may quote a file, a query or another server, without what would move the cursor."""
    return printable_lines(with_options(str(message)))


def say(text: str) -> None:
    """Print a line on standard error. Where that is a file on a full disk the line is lost, and nothing else."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def print_step(name: str, what: str, ms: float) -> None:
    """Show a step of the start-up as it ends."""
    say(f"{name:16}{ms:10.1f} ms  {shown(what)}")


def print_warning(mistake: object, *_: object) -> None:
    """Show what is likely a mistake."""
    say(f"qcls-gguf: warning: {shown(mistake)}")


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

    def warn(mistake: object) -> None:
        print_warning(textwrap.shorten(str(mistake), 140, placeholder=" … (inspect says more)"))

    on_step, on_warning = None if quiet else print_step, warn if warns and not quiet else None
    return ClassifierOpener(offline=offline, on_step=on_step, on_load=load_bar(quiet), on_warning=on_warning)


@contextmanager
def long_work(offline: bool, quiet: bool) -> Iterator[ClassifierOpener]:
    """The same, with a bar on the terminal for every part of the work, which appears with its first item."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    terminal = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bars = Progress(*columns, console=terminal, transient=True, disable=quiet or not terminal.is_terminal)
    with classifier_opener(offline, quiet) as opener, bars:
        tasks = {}

        def on_progress(part: str, done: int, total: int) -> None:
            if part not in tasks:
                tasks[part] = bars.add_task(part, total=total)
            bars.update(tasks[part], completed=done)

        opener.on_progress = on_progress
        yield opener


def needs(feature: str, package: str, extra: str) -> None:
    """Raise ConfigError where a package that comes with an extra of ours is not installed."""
    if importlib.util.find_spec(package) is None:
        raise ConfigError(f"{feature} needs {package}: pip install 'qcls-gguf[{extra}]'")


Output = tuple[str, Path, str | bytes]
"""a file to write: the option that gave its path, the path, the content"""


def show(record: Record, view: Any, form: str, html: Path | None = None, output: Output | None = None) -> None:
    """Print a record as JSON or as its view, then write the files and the page, which is made of a view that is a
    Document.

    What was measured is printed before any file is written, and a file takes its name only when it is whole: a full
    disk loses neither the new measurement nor the old report. Raises QclsError for what could not be written, and
    BrokenPipeError where the reader of the output has left.
    """
    from ..report.document import console, document_page

    failed: list[str] = []
    left: BrokenPipeError | None = None
    try:
        if form == "json":
            print(record.to_json())
        else:
            console().print(view, crop=False)
        sys.stdout.flush()
    except BrokenPipeError as e:
        left = e
    except OSError as e:
        failed.append(f"standard output could not be written: {e.strerror}")
    if html:
        output = "--html", html, document_page(view)
    if output:
        name, path, content = output
        try:
            write_file(path, content, name)
        except QclsError as e:
            failed.append(str(e))
    if failed:
        raise QclsError("; ".join(failed))
    if left:
        raise left


def show_fitted(
    record: Record, view: Any, form: str, out: Output | None, key: str, why_not: str, left_out: list[str], quiet: bool
) -> int:
    """Print the record, write the file, and say how to use it, or why there is none; returns the exit code.

    out: None: nothing was fitted; key: of the file in the configuration; left_out: prompts that are not in it.
    """
    show(record, view, form, None, out)
    but = f"; left out: {', '.join(left_out)}" if left_out else ""
    written = out and f"written: {out[1]}{but}; to use it, name it in the configuration: `{key}: FILE`"
    if not quiet:
        say(printable_lines(written or f"nothing written: {why_not}"))
    return 0 if out else EXIT_OTHER
