"""The frame of tests/hostile: cases made from a seed, few of them in `make test`, many in `make hostile`, and a table.

QCLS_HOSTILE_SEED is the first seed (default 1). QCLS_HOSTILE_FACTOR multiplies every large count (default 1).
QCLS_HOSTILE_MINUTES ends a row after so long; the table says with which seed it goes on.
"""

import math
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from mutate import cases

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
        for case, rng in cases(self.seed, self.n_planned):
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
