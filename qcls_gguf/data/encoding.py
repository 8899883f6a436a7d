"""The text of files that people save: UTF-8 or UTF-16, with a byte order mark or without."""

from __future__ import annotations

import codecs
import io
from collections.abc import Generator, Iterator
from typing import BinaryIO, cast

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
        self._file, self._name = file, name
        peek = getattr(file, "peek", None)
        self._encoding = _utf16(peek(_LOOKED_AT)[:_LOOKED_AT] if peek else b"")
        if offset:
            file.seek(offset)
        self._lines = self._read()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        return next(self._lines)

    def close(self) -> None:
        """Let go of the file, before its owner closes it."""
        self._lines.close()

    def _read(self) -> Generator[bytes, None, None]:
        file, encoding = self._file, self._encoding
        text = None if encoding is None else io.TextIOWrapper(file, encoding, "surrogatepass", newline="\n")

        def readline() -> tuple[bytes, int]:
            """A line as soon as it is there, or the beginning of a long one, and its bytes in the file."""
            if text is None:
                line = file.readline(LONGEST_LINE + 1)
                return line, len(line)
            # The wrapper reads ahead, so its position does not give the lengths of lines; they are those of the bytes.
            part = text.readline(LONGEST_LINE + 1)
            return part.encode("utf-8", "surrogatepass"), len(part.encode(encoding or "", "surrogatepass"))

        try:
            while (first := readline())[0]:
                line, n = first
                rest = line
                while len(rest) > LONGEST_LINE and not rest.endswith(b"\n"):
                    rest, more = readline()
                    n += more
                is_first, self.offset = self.offset == 0, self.offset + n
                yield line.removeprefix(codecs.BOM_UTF8) if is_first else line
        except UnicodeDecodeError as e:
            raise ConfigError(
                f"{self._name}: begins as {str(encoding).upper()} and is not: {e.reason}; save it as UTF-8"
            ) from None
        finally:
            if text is not None:
                text.detach()  # the file is its owner's to close


def utf8_of(content: bytes, name: str) -> bytes:
    """A whole file as UTF-8, as `ByteLines` reads it."""
    return b"".join(ByteLines(io.BufferedReader(cast(io.RawIOBase, io.BytesIO(content))), name))


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
    """Whether a text has no surrogates, which represent bytes that are not valid UTF-8."""
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
