"""The frame of tests/hostile: cases made from a seed, few of them in `make test`, many in `make hostile`, and a table.

QCLS_HOSTILE_SEED is the first seed (default 1). QCLS_HOSTILE_FACTOR multiplies every large count (default 1).
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

_ROWS = pytest.StashKey[list["Row"]]()
_N_SHOWN = 5


@dataclass(slots=True, kw_only=True)
class Row:
    """The cases of one test, and those that went wrong; a row of the table that `make hostile` prints."""

    name: str = ""
    seed: int
    n: int = 0
    """cases"""
    wrong: list[str] = field(default_factory=list)
    """what happened in each case that went wrong, with what is needed to try it again"""
    kinds: Counter[str] = field(default_factory=Counter)
    """how often each good end was seen: a test says by it that its cases reach what they are meant to reach"""
    seconds: float = 0.0

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
    start = time.perf_counter()
    yield started
    started.seconds = time.perf_counter() - start
    if request.node.get_closest_marker("hostile"):
        request.config.stash.setdefault(_ROWS, []).append(started)
    if started.wrong:
        shown = "\n".join(started.wrong[:_N_SHOWN])
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
        if row.kinds:
            ends = ", ".join(f"{n:,} {kind}" for kind, n in row.kinds.most_common())
            terminalreporter.line(f"{row.name}: {ends}")
