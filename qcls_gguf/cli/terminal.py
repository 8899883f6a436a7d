"""What every command does on a terminal: text encoding, exit codes, the start-up's lines and its progress."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from ..errors import ConfigError, ModelError, QclsError
from .option_names import with_options

EXIT_OTHER, EXIT_USAGE, EXIT_MODEL, EXIT_INTERRUPTED = 1, 2, 3, 130


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
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning  # type: ignore[assignment]
            yield
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            print("\r\033[Kqcls-gguf: interrupted", file=sys.stderr)  # not behind what stood on the line, such as ^C
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except BrokenPipeError:
        _drop_output()  # whoever read it has left
        raise typer.Exit(0) from None
    except ConfigError as e:
        _fail(e, EXIT_USAGE)
    except ModelError as e:
        _fail(e, EXIT_MODEL)
    except QclsError as e:
        _fail(e, EXIT_OTHER)
    except OSError as e:
        _drop_output()
        _fail(e, EXIT_OTHER)


def _show_warning(message: Warning | str, *_: object) -> None:
    print(f"qcls-gguf: warning: {with_options(str(message))}", file=sys.stderr)


def _drop_output() -> None:
    """Let the flush at exit not fail once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(error: Exception, code: int) -> NoReturn:
    print(f"qcls-gguf: {with_options(str(error))}", file=sys.stderr)
    raise typer.Exit(code)


def print_step(name: str, what: str, ms: float) -> None:
    """Show a step of the start-up as it ends."""
    print(f"{name:16}{ms:10.1f} ms  {with_options(what)}", file=sys.stderr)


def load_bar(quiet: bool) -> Callable[[float], None] | None:
    """A percentage on the terminal while a large model loads."""
    if quiet or not sys.stderr.isatty():
        return None

    def show(fraction: float) -> None:
        # the line is overwritten by the step's own line
        print(f"\rload model {fraction:6.0%}", end="\r" if fraction < 1 else "\r\033[K", file=sys.stderr, flush=True)

    return show
