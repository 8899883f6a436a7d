"""The text of files that people save: UTF-8 or UTF-16, with a byte order mark or without."""

from __future__ import annotations

import codecs
import io
from collections.abc import Callable, Generator, Iterator
from typing import AnyStr, BinaryIO, cast

from ..errors import ConfigError

_MARKS = ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_LOOKED_AT = 64
LONGEST_LINE = 1 << 24
"""bytes of a line that are read, and one more"""


class ByteLines:
    """The lines of a file as UTF-8, each with its line break, as soon as they are there.

    A byte order mark is left out. What is no UTF-8 stays as it is, for the reader of the line to refuse, and so does
    the beginning of a line of more than LONGEST_LINE bytes. Raises ConfigError, with the file's name, for text that
    begins as UTF-16 and goes on as something else.
    """

    def __init__(self, file: BinaryIO, name: str, *, offset: int = 0) -> None:
        """offset: of a line that an earlier reader of the file found by its own `offset`; of a file that can be read
        again.
        """
        self.offset = offset
        """bytes of the file up to the end of the last line that was given"""
        encoding = _utf16(_beginning(file))
        if offset:
            file.seek(offset)
        self._lines = self._read(file) if encoding is None else self._read_utf16(file, encoding, name)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        return next(self._lines)

    def close(self) -> None:
        """Let go of the file, before its owner closes it."""
        self._lines.close()

    def _read(self, file: BinaryIO) -> Generator[bytes, None, None]:
        is_first = self.offset == 0
        for line, n in _lines(file.readline, b"\n"):  # readline returns a line as soon as it is there
            self.offset += n
            yield line.removeprefix(codecs.BOM_UTF8) if is_first else line
            is_first = False

    def _read_utf16(self, file: BinaryIO, encoding: str, name: str) -> Generator[bytes, None, None]:
        is_first = self.offset == 0
        text = io.TextIOWrapper(file, encoding=encoding, errors="surrogatepass", newline="\n")
        try:
            # The wrapper reads ahead, so its position does not give the lengths of lines; they are those of the bytes.
            for line, n in _lines(text.readline, "\n", lambda part: len(part.encode(encoding, "surrogatepass"))):
                self.offset += n
                yield (line.removeprefix("\ufeff") if is_first else line).encode("utf-8", "surrogatepass")
                is_first = False
        except UnicodeDecodeError as e:
            raise ConfigError(
                f"{name}: begins as {encoding.upper()} and is not: {e.reason}; save it as UTF-8"
            ) from None
        finally:
            text.detach()  # the file is its owner's to close


def _lines(
    readline: Callable[[int], AnyStr], line_break: AnyStr, size: Callable[[AnyStr], int] = len
) -> Iterator[tuple[AnyStr, int]]:
    """Every line, of one that is too long its beginning, and how many bytes it has in the file."""
    while line := readline(LONGEST_LINE + 1):
        rest, n = line, size(line)
        while len(rest) > LONGEST_LINE and not rest.endswith(line_break):
            rest = readline(LONGEST_LINE + 1)
            n += size(rest)
        yield line, n


def utf8_of(content: bytes, name: str) -> bytes:
    """A whole file as UTF-8, as `ByteLines` reads it."""
    return b"".join(ByteLines(io.BufferedReader(cast(io.RawIOBase, io.BytesIO(content))), name))


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


def is_text(text: str) -> bool:
    """Whether a text has no surrogates, which stand for bytes that are no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown_bytes(text: str) -> str:
    """The text with such bytes as escapes, such as `\\xff`."""
    try:
        return text.encode(errors="surrogateescape").decode(errors="backslashreplace")
    except UnicodeEncodeError:  # half of a pair that JSON has as an escape
        return text.encode(errors="backslashreplace").decode()
