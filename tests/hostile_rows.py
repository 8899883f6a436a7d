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
from typing import TypeVar

import pytest

Found = TypeVar("Found")

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
        content = _edited(content, rng, rng.choice(pieces))
    if rng.random() < 1 / 30:
        text = content.decode(errors="replace")
        content = text.encode(rng.choice(["utf-16", "utf-16-be", "utf-32", "utf-8-sig", "utf-7"]), errors="replace")
    return content


def _edited(content: bytes, rng: random.Random, piece: bytes) -> bytes:
    start = rng.randint(0, len(content))
    end = min(len(content), start + min(rng.randint(0, _LONGEST_SPAN), rng.randint(0, _LONGEST_SPAN)))
    lines = content.split(b"\n")
    line = rng.randrange(len(lines))
    match rng.choice(_EDITS):
        case "flip a bit" if start < len(content):
            return content[:start] + bytes([content[start] ^ (1 << rng.randrange(8))]) + content[start + 1 :]
        case "put":
            return content[:start] + piece + content[start:]
        case "put for a span":
            return content[:start] + piece + content[end:]
        case "put for a value" if b":" in content:  # up to the end of the line or the next comma
            at = rng.choice([at for at, byte in enumerate(content, 1) if byte == ord(":")])
            end = next((end for end in range(at, len(content)) if content[end] in b",}\n"), len(content))
            return content[:at] + b" " + piece + content[end:]
        case "remove":
            return content[:start] + content[end:]
        case "repeat":
            return content[:end] + content[start:end] * rng.choice([1, 1, 2, 30]) + content[end:]
        case "move a line":
            lines.insert(rng.randrange(len(lines)), lines.pop(line))
            return b"\n".join(lines)
        case "indent a line":
            lines[line] = rng.choice([b" ", b"  ", b"\t", b"- ", b"? "]) + lines[line].lstrip()
            return b"\n".join(lines)
        case "cut":
            return content[:start]
    return content


_EDITS = (
    *("flip a bit", "put", "put for a span", "put for a value", "put for a value"),
    *("remove", "repeat", "move a line", "indent a line", "cut"),
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
        for case in range(self.seed, self.seed + self.n_planned):
            if time.monotonic() - self.began > self.limit_s:
                return
            self.n += 1
            yield case, random.Random(case)

    def ended(self, case: int, action: Callable[[], Found], *refusals: type[Exception]) -> Found | None:
        """What comes of a case; None where it is refused, in few words that a terminal can show, or goes wrong."""
        try:
            return action()
        except refusals as e:
            self.kinds["refused"] += 1
            text = str(e).replace("\n", "")
            self.check(text.isprintable() and len(text) < 10_000, f"seed {case}: {text[:500]!r}")
        except BaseException as e:
            self.wrong.append(f"seed {case}: {type(e).__name__}: {e}")
        return None

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
    line = terminalreporter.line
    line("| row | cases | seed | found | wanted | s |")
    line("|---|---|---|---|---|---|")
    for row in rows:
        line(f"| {row.name} | {row.n:,} | {row.seed} | {len(row.wrong)} | 0 | {row.seconds:.0f} |")
    for row in rows:
        if row.n < row.n_planned:
            seed = f"QCLS_HOSTILE_SEED={row.seed + row.n}"
            line(f"{row.name}: {row.n:,} of {row.n_planned:,} cases in this time; the next have {seed}")
        if row.kinds:
            ends = ", ".join(f"{n:,} {kind}" for kind, n in row.kinds.most_common())
            line(f"{row.name}: {ends}")
