"""Ctrl-C and SIGTERM end a command at any moment with one line, and the exit code that shells expect.

It is imported before everything else, so it imports next to nothing. While modules are imported there is nothing to
clean up, and the process ends at once; while a command works an exception ends it, and at once the second time.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
SIGNALLED = 128
"""What shells add to a signal's number."""


class StoppedError(KeyboardInterrupt):
    """The process was asked to stop; libraries take it for the KeyboardInterrupt that it is."""


def stopped_line(number: int) -> str:
    """The message for it, on a line of its own."""
    # On a terminal, not after what stood on the line, such as ^C or a progress.
    start = "\r\033[K" if sys.stderr is not None and sys.stderr.isatty() else ""
    return f"{start}qcls-gguf: {_WORDS.get(number, 'interrupted')}\n"  # type: ignore[call-overload]


def end_at_once() -> None:
    """Let the signals end the process at once."""
    _handle(_end)


class Stoppable:
    """Inside, the signals raise StoppedError, once; a second one ends the process."""

    def __init__(self) -> None:
        self.number: int | None = None
        """the signal that came"""

    def __enter__(self) -> Stoppable:
        self._before = {number: signal.getsignal(number) for number in _WORDS}
        self._unraisable = sys.unraisablehook
        sys.unraisablehook = self._lost
        _handle(self._raise)
        return self

    def __exit__(self, *_: object) -> None:
        sys.unraisablehook = self._unraisable
        for number, handler in self._before.items():
            if handler is not signal.SIG_IGN:
                _set(number, handler)

    def _raise(self, number: int, _: object) -> None:
        self.number = number
        _handle(_end)
        raise StoppedError

    def _lost(self, unraisable: sys.UnraisableHookArgs) -> None:
        """End the command if our exception was only reported, as in a callback of the garbage collector."""
        if issubclass(unraisable.exc_type, StoppedError) and self.number is not None:
            _end(self.number, None)
        self._unraisable(unraisable)


def _end(number: int, _: object) -> None:
    with suppress(OSError):  # standard error may be closed
        os.write(2, stopped_line(number).encode())
    os._exit(SIGNALLED + number)


def _handle(handler: object) -> None:
    for number in _WORDS:
        # A command in the background, or under nohup, ignores the signal.
        if signal.getsignal(number) is not signal.SIG_IGN:
            _set(number, handler)


def _set(number: int, handler: object) -> None:
    with suppress(ValueError):  # only the main thread may
        signal.signal(number, handler)  # type: ignore[arg-type]
