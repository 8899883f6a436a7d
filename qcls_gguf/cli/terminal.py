"""What every command does on a terminal: text encoding, exit codes, the start-up's lines and its progress."""

from __future__ import annotations

import errno
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

import typer

from ..config.words import printable_lines
from ..errors import ConfigError, ModelError, QclsError
from .option_names import with_options
from .signals import Stoppable, exit_code, stopped_line

EXIT_OTHER, EXIT_USAGE, EXIT_MODEL = 1, 2, 3
_NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO)
_EXITS = {ConfigError: EXIT_USAGE, ModelError: EXIT_MODEL}


@contextmanager
def exit_codes() -> Iterator[None]:
    """Print UTF-8, and turn what ends a command early into a line on standard error and its exit code."""
    for name, errors in (("stdin", "surrogateescape"), ("stdout", "backslashreplace"), ("stderr", "backslashreplace")):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started us
            flags, mode = (os.O_RDONLY, "r") if name == "stdin" else (os.O_WRONLY, "w")
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), mode))
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors=errors)
    with Stoppable() as stoppable:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show_warning  # type: ignore[assignment]
                yield
                sys.stdout.flush()
        except BaseException as e:
            # What imports and callbacks make of the interrupt may be any exception.
            stopped_by = signal.SIGINT if isinstance(e, KeyboardInterrupt) else None
            if (number := stoppable.number or stopped_by) is not None:
                print(stopped_line(number), end="", file=sys.stderr)
                raise typer.Exit(exit_code(number)) from None
            _end(e)


def _end(error: BaseException) -> NoReturn:
    """Print what ended a command, and exit; raise what is no error of ours."""
    if isinstance(error, BrokenPipeError):
        _drop_output()  # whoever read it has left
        raise typer.Exit(0) from None
    if isinstance(error, OSError):
        _drop_output()
        # Whatever else is written names its file.
        is_output = error.filename is None and error.errno in _NO_ROOM
        _fail(f"standard output could not be written: {error.strerror}" if is_output else error, EXIT_OTHER)
    if isinstance(error, QclsError):
        _fail(error, next((code for kind, code in _EXITS.items() if isinstance(error, kind)), EXIT_OTHER))
    raise error


@contextmanager
def flushed() -> Iterator[None]:
    """Write what was printed before the interpreter does it at its exit, where a failure prints a traceback."""
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


def _shown(message: object) -> str:
    """A message, which may quote a file, a query or another server, without what would move the cursor."""
    return printable_lines(with_options(str(message)))


def _show_warning(message: Warning | str, *_: object) -> None:
    print_warning(message)


def _drop_output() -> None:
    """Let the flush at exit not fail once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(error: Exception | str, code: int) -> NoReturn:
    print(f"qcls-gguf: {_shown(error)}", file=sys.stderr)
    raise typer.Exit(code)


def say(text: str) -> None:
    """Print a line on standard error. Where that is a file on a full disk the line is lost, and nothing else."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def print_step(name: str, what: str, ms: float) -> None:
    """Show a step of the start-up as it ends."""
    say(f"{name:16}{ms:10.1f} ms  {_shown(what)}")


def print_warning(mistake: object) -> None:
    """Show what is likely a mistake."""
    say(f"qcls-gguf: warning: {_shown(mistake)}")


def load_bar(quiet: bool) -> Callable[[float], None] | None:
    """A percentage on the terminal while a large model loads."""
    if quiet or not sys.stderr.isatty():
        return None

    def show(fraction: float) -> None:
        # the line is overwritten by the step's own line
        print(f"\rload model {fraction:6.0%}", end="\r" if fraction < 1 else "\r\033[K", file=sys.stderr, flush=True)

    return show
