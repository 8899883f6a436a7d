"""Damaged and hostile versions of a file's content, made from a seed."""

import random
from collections.abc import Callable, Iterator, Sequence

_LONGEST_SPAN = 400
ODD = (
    *(b"\x00", b"\x1b[2J", b"\xff\xfe", b"\xef\xbb\xbf"),
    b"\xed\xa0\x80",  # half of a surrogate pair
    *(b"\xc0\x80", "\u202e\u2028\x85".encode(), b"\t", b"\r"),
    *(b"9" * 4301, b"-0", b"1e999", b"NaN", b"-Infinity", b"null", b"18446744073709551617"),
    *(b'"', b"'", b"[" * 300, b"{" * 300, b'{"a":' * 2000, b"[" * 200_000),
)
"""Texts that readers of any format have stumbled over."""


def mutated(content: bytes, rng: random.Random, pieces: Sequence[bytes] = ODD) -> bytes:
    """The content after one to six edits; pieces: what may be put in. One in 30 is in another encoding afterwards."""
    for _ in range(rng.randint(1, 6)):
        content = rng.choice(_EDITS)(content, rng, pieces)
    if rng.random() < 1 / 30:
        text = content.decode(errors="replace")
        content = text.encode(rng.choice(["utf-16", "utf-16-be", "utf-32", "utf-8-sig", "utf-7"]), errors="replace")
    return content


def cases(seed: int, n: int) -> Iterator[tuple[int, random.Random]]:
    """The seeds of n cases and what to draw from: each case can be made again by its own seed."""
    for case in range(seed, seed + n):
        yield case, random.Random(case)


def _span(content: bytes, rng: random.Random) -> tuple[int, int]:
    start = rng.randint(0, len(content))
    return start, min(len(content), start + min(rng.randint(0, _LONGEST_SPAN), rng.randint(0, _LONGEST_SPAN)))


def _flip(content: bytes, rng: random.Random, _: Sequence[bytes]) -> bytes:
    if not content:
        return content
    at = rng.randrange(len(content))
    return content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :]


def _put(content: bytes, rng: random.Random, pieces: Sequence[bytes]) -> bytes:
    at = rng.randint(0, len(content))
    return content[:at] + rng.choice(pieces) + content[at:]


def _put_for(content: bytes, rng: random.Random, pieces: Sequence[bytes]) -> bytes:
    start, end = _span(content, rng)
    return content[:start] + rng.choice(pieces) + content[end:]


def _put_for_value(content: bytes, rng: random.Random, pieces: Sequence[bytes]) -> bytes:
    """Put a piece where a value stands: behind a colon, up to the end of the line or the next comma."""
    colons = [at for at, byte in enumerate(content) if byte == ord(":")]
    if not colons:
        return content
    start = rng.choice(colons) + 1
    end = next((at for at in range(start, len(content)) if content[at] in b",}\n"), len(content))
    return content[:start] + b" " + rng.choice(pieces) + content[end:]


def _remove(content: bytes, rng: random.Random, _: Sequence[bytes]) -> bytes:
    start, end = _span(content, rng)
    return content[:start] + content[end:]


def _repeat(content: bytes, rng: random.Random, _: Sequence[bytes]) -> bytes:
    start, end = _span(content, rng)
    return content[:end] + content[start:end] * rng.choice([1, 1, 2, 30]) + content[end:]


def _move(content: bytes, rng: random.Random, _: Sequence[bytes]) -> bytes:
    lines = content.split(b"\n")
    lines.insert(rng.randint(0, len(lines)), lines.pop(rng.randrange(len(lines))))
    return b"\n".join(lines)


def _indent(content: bytes, rng: random.Random, _: Sequence[bytes]) -> bytes:
    lines = content.split(b"\n")
    at = rng.randrange(len(lines))
    lines[at] = rng.choice([b" ", b"  ", b"\t", b"- ", b"? "]) + lines[at].lstrip()
    return b"\n".join(lines)


def _cut(content: bytes, rng: random.Random, _: Sequence[bytes]) -> bytes:
    return content[: rng.randint(0, len(content))]


_EDITS: tuple[Callable[[bytes, random.Random, Sequence[bytes]], bytes], ...] = (
    *(_flip, _put, _put_for, _put_for_value, _put_for_value),
    *(_remove, _repeat, _move, _indent, _cut),
)
