"""The queries that candidates are tried on: any input of `run`, with labels where it has some."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..data.labelled import ALL, BadRow, LabelledColumns, LabelledQuery, read_labelled
from ..data.queries import QUERY, Columns, read_queries
from ..errors import ConfigError

_WITH_LABELS = (".jsonl", ".ndjson", ".csv", ".tsv")
_NO_LABELS = ("has no 'labels'", "has no label of any prompt")
"""what read_labelled finds wrong with rows that are not labelled"""
_CALLED = "queries"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialQueries:
    """Queries in random order."""

    path: Path
    sha256: str
    rows: tuple[LabelledQuery, ...]
    """those without labels have none"""
    bad: tuple[BadRow, ...]
    """rows that cannot be used, and rows whose labels cannot: these are used without them"""

    @property
    def texts(self) -> list[str]:
        """The queries' texts."""
        return [row.query for row in self.rows]


def read_trial_queries(
    path: Path, labels: Mapping[str, Sequence[str]], *, query_column: str | None, seed: int
) -> TrialQueries:
    """The queries of a file, each text once.

    labels: of each prompt. Rows that cannot be used are left out and told. Raises ConfigError for a file that cannot be
    read, or has no query.
    """
    if not path.is_file() or not os.access(path, os.R_OK):
        what = "cannot be read: name a plain file, it is read more than once" if path.exists() else "no such file"
        raise ConfigError(f"`{_CALLED}` {path}: {what}")
    rows: dict[str, LabelledQuery] = {}
    bad: list[BadRow] = []
    columns = Columns(query=query_column)
    accepted, wrong = _accepted(path, labels, query_column)
    for line in read_queries(str(path), columns=columns, called=_CALLED):
        number = line.number or 0
        if line.error:
            bad.append(BadRow(number, line.error))
        else:
            rows.setdefault(line.text, LabelledQuery(line=number, query=line.text, labels=accepted.get(number, {})))
    if not rows:
        why = f": {bad[0].reason}" if bad else ": give one a line"
        raise ConfigError(f"`{_CALLED}` {path}: has no queries that can be used{why}")
    told = {row.line for row in bad}
    bad += [BadRow(row.line, f"without its labels: {row.reason}") for row in wrong if row.line not in told]
    order = list(rows.values())
    random.Random(seed).shuffle(order)
    return TrialQueries(
        path=path,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        rows=tuple(order),
        bad=tuple(sorted(bad, key=lambda row: row.line)),
    )


def _accepted(
    path: Path, labels: Mapping[str, Sequence[str]], query_column: str | None
) -> tuple[dict[int, Mapping[str, tuple[str, ...]]], list[BadRow]]:
    """Accepted labels by line, and the rows whose labels cannot be used."""
    if path.suffix.lower() not in _WITH_LABELS:
        return {}, []
    found = read_labelled(path, labels, LabelledColumns(query=query_column or QUERY, ignored=ALL), called=_CALLED)
    wrong = [row for row in found.bad if row.reason not in _NO_LABELS]
    return {row.line: row.labels for row in found.rows}, wrong
