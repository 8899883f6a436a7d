"""Bounded reads in a mapped GGUF file: whatever the bytes say, no read goes past the end and none is unbounded."""

from __future__ import annotations

import mmap
import struct

# A damaged count must not turn into a walk over gigabytes of weights; real vocabularies hold below 600,000 strings.
MAX_STRINGS = 4 << 20
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class DamagedError(Exception):
    """What is wrong with the bytes, and the remedy; the reader of the file turns it into a ModelError with the path."""

    def __init__(self, wrong: str, remedy: str = "download or copy the file again") -> None:
        super().__init__(f"{wrong}; {remedy}")


class Cursor:
    """A position in the mapped file; `reading` names what is read there, for the message if the file ends early."""

    def __init__(self, buffer: mmap.mmap) -> None:
        self.buffer = buffer
        self.pos = 0
        self.reading = "the counts"

    def scalar(self, layout: struct.Struct) -> int | float | bool:
        """Read one number."""
        try:
            (value,) = layout.unpack_from(self.buffer, self.pos)
        except struct.error:
            raise self.ended() from None
        self.pos += layout.size
        number: int | float | bool = value
        return number

    def u32(self) -> int:
        """Read an unsigned 32-bit integer."""
        return int(self.scalar(_U32))

    def u64(self) -> int:
        """Read an unsigned 64-bit integer."""
        return int(self.scalar(_U64))

    def string(self, max_bytes: int, *, errors: str = "strict") -> str:
        """Read a string of at most `max_bytes` bytes."""
        length = self.u64()
        if length > max_bytes:
            raise DamagedError(f"{self.reading} has a string of {length:,} bytes, the limit is {max_bytes:,}")
        start = self.pos
        self.skip(length)
        try:
            return self.buffer[start : self.pos].decode("utf-8", errors)
        except UnicodeDecodeError:
            raise DamagedError(f"{self.reading} is not valid UTF-8") from None

    def skip(self, n_bytes: int) -> None:
        """Step over `n_bytes` bytes."""
        if n_bytes > len(self.buffer) - self.pos:
            raise self.ended()
        self.pos += n_bytes

    def skip_strings(self, count: int) -> None:
        """Step over `count` strings; a vocabulary has hundreds of thousands, so the loop does nothing else."""
        if count > MAX_STRINGS:
            raise DamagedError(f"{self.reading} announces {count:,} strings, the limit is {MAX_STRINGS:,}")
        read_length, buffer, pos = _U64.unpack_from, self.buffer, self.pos
        try:
            for _ in range(count):
                pos += 8 + read_length(buffer, pos)[0]
        except (struct.error, OverflowError):
            raise self.ended() from None
        self.skip(pos - self.pos)

    def ended(self) -> DamagedError:
        """The error for a file that ends, or points past its end, in the middle of the header."""
        return DamagedError(f"the file ends inside its header, at {self.reading} ({len(self.buffer):,} bytes in all)")
