"""The text of files that people save: UTF-8 or UTF-16, with a byte order mark or without."""

from __future__ import annotations

import codecs
import io
from collections.abc import Callable, Iterator
from typing import AnyStr, BinaryIO, cast

from ..errors import ConfigError

_MARKS = ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_LOOKED_AT = 64
LONGEST_LINE = 1 << 24
"""bytes of a line that are read, and one more"""


def byte_lines(file: BinaryIO, name: str) -> Iterator[bytes]:
    """The lines of a file as UTF-8, each with its line break, as soon as they are there.

    A byte order mark is left out. What is no UTF-8 stays as it is, for the reader of the line to refuse, and so does
    the beginning of a line of more than LONGEST_LINE bytes. Raises ConfigError, with the file's name, for text that
    begins as UTF-16 and goes on as something else.
    """
    encoding = _utf16(_beginning(file))
    if encoding is None:
        for number, line in enumerate(_lines(file.readline, b"\n")):  # readline returns a line as soon as it is there
            yield line.removeprefix(codecs.BOM_UTF8) if number == 0 else line
        return
    text = io.TextIOWrapper(file, encoding=encoding, errors="surrogatepass", newline="\n")
    try:
        for number, decoded in enumerate(_lines(text.readline, "\n")):
            yield (decoded.removeprefix("\ufeff") if number == 0 else decoded).encode("utf-8", "surrogatepass")
    except UnicodeDecodeError as e:
        raise ConfigError(f"{name}: begins as {encoding.upper()} and is not: {e.reason}; save it as UTF-8") from None
    finally:
        text.detach()  # the file is its owner's to close


def _lines(readline: Callable[[int], AnyStr], line_break: AnyStr) -> Iterator[AnyStr]:
    """Every line, of one that is too long its beginning."""
    while line := readline(LONGEST_LINE + 1):
        yield line
        while len(line) > LONGEST_LINE and not line.endswith(line_break):
            line = readline(LONGEST_LINE + 1)


def utf8_of(content: bytes, name: str) -> bytes:
    """A whole file as UTF-8, as `byte_lines` reads it."""
    return b"".join(byte_lines(io.BufferedReader(cast(io.RawIOBase, io.BytesIO(content))), name))


def _beginning(file: BinaryIO) -> bytes:
    peek = getattr(file, "peek", None)
    return peek(_LOOKED_AT)[:_LOOKED_AT] if peek else b""


def _utf16(beginning: bytes) -> str | None:
    """UTF-16's name where a text begins with its mark, or where half of every other byte is null; else None."""
    for mark, encoding in _MARKS:
        if beginning.startswith(mark):
            return encoding
    even, odd = beginning[::2], beginning[1::2]
    for nulls, others, encoding in ((odd, even, "utf-16-le"), (even, odd, "utf-16-be")):
        if len(nulls) >= 2 and nulls.count(0) * 2 >= len(nulls) and 0 not in others:
            return encoding
    return None
