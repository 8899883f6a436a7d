"""The lines of text files that people save: packed or not, in UTF-8, UTF-16, UTF-32, or an encoding that is named."""

import codecs
import io
import re
import zlib
from collections.abc import Generator
from typing import BinaryIO

from ..config.words import shown
from ..errors import ConfigError

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF32_LE, "utf-32-le"), (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"),
)  # fmt: skip
_GZIP, _ZSTANDARD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_OTHERS = {
    "is a spreadsheet or packed: save it as .csv, or unpack it": (b"PK\x03\x04", b"\xd0\xcf\x11\xe0"),
    "is packed: unpack it": (b"BZh", b"\xfd7zXZ", b"7z\xbc\xaf", b"\x04\x22\x4d\x18", b"\xff\x06\0\0sNa", b"\x1f\x9d"),
    "is a file of Arrow: save it as Parquet, .csv or .jsonl": (b"ARROW1", b"FEA1"),
    "is neither text nor a table that is read: save it as .csv or .jsonl": (
        *(b"SQLite format", b"%PDF-", b"Obj\x01", b"\x93NUMPY", b"\x89HDF", b"\x80\x04\x95", b"<?xml", b"<!DOCTYPE"),
    ),
}
"""what is no text, with its first bytes"""
_LOOKED_AT = 64
SHIFTS = re.compile(r"\x1b[$(][$()@-J]|~\{(?:[!-w][!-~])+~\}|\+A[OP][AEIMQUYcgkosw048]-")
"""what ISO-2022 and HZ, whose texts are ASCII, begin another script with; and an accented letter of UTF-7"""
LONGEST_LINE = 1 << 24
"""bytes of a line that are read, and one more"""


def beginning(file: BinaryIO, n: int = _LOOKED_AT) -> bytes:
    """The first bytes of a file, which are still to be read."""
    peek = getattr(file, "peek", None)
    return peek(n)[:n] if peek else b""


def unpacked(file: BinaryIO) -> BinaryIO:
    """A file, or what it has inside if it is packed with gzip or Zstandard. Raises ConfigError for other packings."""
    first = beginning(file)
    if what := next((what for what, marks in _OTHERS.items() if first.startswith(marks)), None):
        raise ConfigError(what)
    if first.startswith(_GZIP):
        import gzip

        return gzip.GzipFile(fileobj=file)  # type: ignore[return-value]
    if not first.startswith(_ZSTANDARD):
        return file
    try:
        import pyarrow as pa
    except ImportError:
        raise ConfigError("is packed with Zstandard: unpack it, or pip install 'qcls-gguf[label]'") from None
    return io.BufferedReader(pa.CompressedInputStream(file, "zstd"))


class Lines:
    """The lines of a file with their line breaks, as soon as they are there, without a byte order mark.

    A byte that is not valid is a surrogate. Raises ConfigError for text that begins as UTF-16 or UTF-32 and goes on as
    something else, for lines that end in carriage returns alone, and for a packed file that breaks off.
    """

    def __init__(self, file: BinaryIO, encoding: str | None = None, *, offset: int = 0) -> None:
        """encoding: None: found by the mark or by the first bytes. offset: where a line begins, as an earlier reader of
        the same content found it. Raises ConfigError for an encoding that is not known.
        """
        first = beginning(file, 1 << 16)
        self.encoding = _named(encoding, first) if encoding else _detected(first[:_LOOKED_AT]) or "utf-8"
        if not _is_wide(self.encoding) and b"\r" in first.rstrip(b"\r") and b"\n" not in first:
            raise ConfigError("its lines end in carriage returns alone: save it with other line ends")
        self.offset = offset
        """bytes of the content up to the end of the last line that was given"""
        self.is_cut = False
        """whether that line has more than LONGEST_LINE bytes, and only its beginning was given"""
        if offset:
            _skip(file, offset)
        self.texts = self._read(file)
        """the lines; to be closed before the owner of the file closes it"""

    def _read(self, file: BinaryIO) -> Generator[str, None, None]:
        encoding, is_first = self.encoding, self.offset == 0
        text = io.TextIOWrapper(file, encoding, "surrogatepass", newline="\n") if _is_wide(encoding) else None

        def readline() -> tuple[str, bool]:
            """A line as soon as it is there, and whether it goes on."""
            if text is None:
                raw = file.readline(LONGEST_LINE + 1)
                line = raw.decode(encoding, "surrogateescape")
            else:  # which reads ahead, so its position does not give the lengths of lines; they are those of the bytes
                line = text.readline(LONGEST_LINE + 1)
                raw = line.encode(encoding, "surrogatepass")
            self.offset += len(raw)
            return line, len(raw) > LONGEST_LINE and not line.endswith("\n")

        try:
            while (found := readline())[0]:
                line, self.is_cut = found
                goes_on = self.is_cut
                while goes_on:
                    goes_on = readline()[1]
                yield line.removeprefix("\ufeff") if is_first else line
                is_first = False
        except UnicodeDecodeError as e:
            raise ConfigError(f"begins as {encoding.upper()} and is not: {e.reason}; {REMEDY}") from None
        except (EOFError, zlib.error) as e:
            raise ConfigError(f"is packed with gzip and cannot be unpacked: {e}") from None
        finally:
            if text is not None and not text.closed:
                text.detach()  # the file is its owner's to close


REMEDY = "save it as UTF-8, or name its encoding with `encoding`, such as windows-1252"
"""for text that is in an encoding which cannot be found out"""


def _is_wide(encoding: str) -> bool:
    """Whether a line break is more than a byte."""
    return encoding.startswith(("utf-16", "utf-32"))


def _skip(file: BinaryIO, n: int) -> None:
    """Leave out the first bytes; of a packed file they are read, for what is packed cannot be entered in the middle."""
    if isinstance(file, io.BufferedReader) and file.seekable():
        file.seek(n)
        return
    while n > 0 and (part := file.read(min(n, 1 << 20))):
        n -= len(part)


def _named(encoding: str, first: bytes) -> str:
    """The codec of a name. Raises ConfigError for one whose lines cannot be found, or that the mark contradicts."""
    try:
        found = codecs.lookup(encoding).name
        is_usable = _is_wide(found) or b"\n".decode(found) == "\n"
    except (LookupError, ValueError):
        is_usable = False
    if not is_usable:
        known = "utf-8, utf-16, windows-1252, latin-1, gb18030 or shift_jis"
        raise ConfigError(f"`encoding` {shown(encoding, quoted=False)}: is no known encoding: name one such as {known}")
    mark = next((name for mark, name in _MARKS if first.startswith(mark)), None)
    found = "utf-8" if found == "utf-8-sig" else found
    if found in ("utf-16", "utf-32"):
        found = mark if mark and mark.startswith(found) else f"{found}-le"
    if mark and mark != found:
        what = f"the file begins with the mark of {mark.upper()}"
        raise ConfigError(f"`encoding` {encoding}: {what}: leave `encoding` out")
    return found


def _detected(first: bytes) -> str | None:
    """The encoding that begins with its mark, or UTF-16 or UTF-32 by where the null bytes are; None for any other."""
    if named := next((name for mark, name in _MARKS if first.startswith(mark)), None):
        return named
    if len(first) >= 8 and any(first):
        for encoding, high, low in (("utf-32-le", first[3::4], first[2::4]), ("utf-32-be", first[::4], first[1::4])):
            if not any(high) and not any(byte > 0x10 for byte in low):
                return encoding
    even, odd = first[::2], first[1::2]
    for nulls, others, encoding in ((odd, even, "utf-16-le"), (even, odd, "utf-16-be")):
        if len(nulls) >= 2 and nulls.count(0) * 2 >= len(nulls) and 0 not in others:
            return encoding
    return None


def is_text(text: str) -> bool:
    """Whether a text has no surrogates, which represent bytes that are not valid."""
    if text.isascii():
        return True
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
