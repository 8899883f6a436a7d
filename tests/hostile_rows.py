"""Damaged and hostile versions of a file's content, made from a seed.

The frame of tests/hostile: cases made from a seed, few of them in `make test`, many in `make hostile`, and a table.

QCLS_HOSTILE_SEED is the first seed (default 1). QCLS_HOSTILE_FACTOR multiplies every large count (default 1).
QCLS_HOSTILE_MINUTES ends a row after so long; the table says with which seed it goes on.
"""

import math
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

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


def seeded(seed: int, n: int) -> Iterator[tuple[int, random.Random]]:
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


_ROWS = pytest.StashKey[list["Row"]]()


@dataclass(slots=True, kw_only=True)
class Row:
    """The cases of one test, and those that went wrong; a row of the table that `make hostile` prints."""

    name: str = ""
    seed: int
    n: int = 0
    """cases"""
    n_planned: int = 0
    """cases there would have been, where time ended the row before"""
    limit_s: float = math.inf
    began: float = field(default_factory=time.monotonic)
    wrong: list[str] = field(default_factory=list)
    """what happened in each case that went wrong, with what is needed to try it again"""
    kinds: Counter[str] = field(default_factory=Counter)
    """how often each good end was seen: a test says by it that its cases reach what they are meant to reach"""
    seconds: float = 0.0

    def cases(self) -> Iterator[tuple[int, random.Random]]:
        """The seeds of the row's n cases and what to draw from: each case can be made again by its own seed.

        Where time ends the row, n is the number of cases that were tried.
        """
        self.n_planned, self.n = self.n, 0
        for case, rng in seeded(self.seed, self.n_planned):
            if time.monotonic() - self.began > self.limit_s:
                return
            self.n += 1
            yield case, rng

    def check(self, good: bool, what: str) -> None:
        """Note a case that went wrong."""
        if not good:
            self.wrong.append(what)


def sizes(few: int, many: int) -> pytest.MarkDecorator:
    """Runs a test with `n` cases: few in `make test`, many in `make hostile`."""
    large = max(1, round(many * float(os.environ.get("QCLS_HOSTILE_FACTOR", "1"))))
    return pytest.mark.parametrize(
        "n", [pytest.param(few, id="few"), pytest.param(large, id="many", marks=pytest.mark.hostile)]
    )


@pytest.fixture
def row(request: pytest.FixtureRequest) -> Iterator[Row]:
    """The test's row: it sets name and number of cases and notes what goes wrong, which fails it."""
    started = Row(seed=int(os.environ.get("QCLS_HOSTILE_SEED", "1")))
    if request.node.get_closest_marker("hostile"):
        started.limit_s = 60 * float(os.environ.get("QCLS_HOSTILE_MINUTES", "inf"))
    start = time.perf_counter()
    yield started
    started.seconds = time.perf_counter() - start
    if request.node.get_closest_marker("hostile"):
        request.config.stash.setdefault(_ROWS, []).append(started)
    if started.wrong:
        shown = "\n".join(started.wrong[:5])
        pytest.fail(f"{len(started.wrong)} of {started.n} cases went wrong, among them\n{shown}", pytrace=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table of the large runs, if any ran."""
    rows = config.stash.get(_ROWS, [])
    if not rows:
        return
    terminalreporter.section("hostile")
    terminalreporter.line("| row | cases | seed | found | wanted | s |")
    terminalreporter.line("|---|---|---|---|---|---|")
    for row in rows:
        terminalreporter.line(f"| {row.name} | {row.n:,} | {row.seed} | {len(row.wrong)} | 0 | {row.seconds:.0f} |")
    for row in rows:
        if row.n < row.n_planned:
            seed = f"QCLS_HOSTILE_SEED={row.seed + row.n}"
            terminalreporter.line(
                f"{row.name}: {row.n:,} of {row.n_planned:,} cases in this time; the next have {seed}"
            )
        if row.kinds:
            ends = ", ".join(f"{n:,} {kind}" for kind, n in row.kinds.most_common())
            terminalreporter.line(f"{row.name}: {ends}")
