"""Ctrl-C and SIGTERM end a command at any moment with one line, and the exit code that shells expect.

The process ends at once: nothing is unwound while threads of llama.cpp work on what that would free.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
_undo: list[Callable[[], object]] = []
_terminal: list[Any] = []
"""how the terminal was before a line was edited on it"""


def end_at_once() -> None:
    """Let the signals end the process, unless it ignores them, as in the background or under nohup."""
    for number in _WORDS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, end_with)
    with suppress(ImportError, OSError):
        if os.isatty(0):
            import termios

            _terminal[:] = termios.tcgetattr(0)


@contextmanager
def undone_by_a_stop(undo: Callable[[], object]) -> Iterator[None]:
    """Inside, a stop calls this, such as to remove a file that is being written."""
    _undo.append(undo)
    try:
        yield
    finally:
        _undo.remove(undo)


def end_with(number: int, _: object = None) -> None:
    """End the process with a line for the signal of this number; a second signal ends it without."""
    for other in _WORDS:
        signal.signal(other, signal.SIG_DFL)
    start = ""
    with suppress(Exception):  # the reader of the output may have left, or a print be under way
        sys.stdout.flush()
    with suppress(Exception):
        if _terminal:
            import termios

            termios.tcsetattr(0, termios.TCSANOW, _terminal)
        if sys.stderr.isatty():  # on a line of its own, with the cursor that a progress hides
            start = "\r\033[K\033[?25h"
    for undo in list(_undo):
        with suppress(Exception):
            undo()
    with suppress(OSError):  # standard error may be closed
        os.write(2, f"{start}qcls-gguf: {_WORDS.get(number, 'stopped')}\n".encode())  # type: ignore[call-overload]
    os._exit(128 + number)
