"""Queries from a file or from standard input, one a line, as they arrive."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # some editors write one


@dataclass(frozen=True, slots=True)
class Line:
    """A query, or the reason why the line has none."""

    text: str
    error: str | None = None


def check_source(source: str) -> None:
    """Raise ConfigError for an input that cannot be read; nothing is read yet."""
    if source == "-":
        return
    if not os.path.exists(source):
        raise ConfigError(f"`input` {source}: no such file")
    if os.path.isdir(source) or not os.access(source, os.R_OK):
        raise ConfigError(f"`input` {source}: cannot be read: give a readable file, or - for standard input")


def read_queries(source: str) -> Iterator[Line]:
    """The queries of a file, or of standard input for `-`: a line each, without its line break; no blank lines.

    A line that is not valid UTF-8 is returned with an error, and the lines after it follow. Raises ConfigError for a
    file that cannot be read.
    """
    try:
        with nullcontext(sys.stdin.buffer) if source == "-" else Path(source).open("rb") as file:
            for number, data in enumerate(
                iter(file.readline, b""), 1
            ):  # readline returns a line as soon as it is there
                line = data.removeprefix(_BYTE_ORDER_MARK) if number == 1 else data
                line = line.rstrip(b"\r\n")
                if line.strip():
                    yield _decoded(line, number)
    except OSError as e:
        raise ConfigError(f"`input` {source}: cannot be read: {e.strerror}") from None


def _decoded(line: bytes, number: int) -> Line:
    try:
        return Line(line.decode())
    except UnicodeDecodeError as e:
        error = f"line {number} is not valid UTF-8 at byte {e.start}: save the input as UTF-8"
        return Line(line.decode(errors="backslashreplace"), error)
