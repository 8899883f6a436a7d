"""Labelled queries from JSON lines or CSV. All rows are checked when they are read."""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config.words import MAX_LISTED, JsonObject, hint, shown
from ..errors import ConfigError, prefixed, readable
from .encoding import is_text, utf8_of
from .queries import QUERY
from .rows import Row, Rows, format_of, why_refused


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledQuery:
    """A query and its accepted labels."""

    line: int
    query: str
    labels: Mapping[str, tuple[str, ...]]
    """accepted labels by prompt; prompts that the row has no label for are not there"""


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be used, and why."""

    line: int
    """in the data"""
    reason: str
    """what is wrong with it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledData:
    """The rows of a file of labelled queries."""

    path: Path
    sha256: str
    rows: tuple[LabelledQuery, ...]
    bad: tuple[BadRow, ...]


ALL = ("all",)
"""in place of the names of columns: whichever there are"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledColumns:
    """Which columns of a table are read, and of JSON lines which keys of an object and of its labels."""

    query: str = QUERY
    """the one with the queries"""
    labels: tuple[str, ...] = ()
    """those with labels, named after the prompts; empty: all but the ignored ones"""
    ignored: tuple[str, ...] = ()
    """columns that are neither queries nor prompts, or ALL"""

    def are_read(self, name: str) -> bool:
        """Whether a column, other than the queries', is read for its labels."""
        return name in self.labels if self.labels else name not in self.ignored

    def of_prompt(self, name: str, prompts: Collection[str]) -> bool:
        """Whether a column has the labels of a prompt. Raises ConfigError for one that is not known."""
        if not self.are_read(name) or (self.ignored == ALL and name not in prompts):
            return False
        if name not in prompts:
            remedy = "leave it out with `ignore_columns`"
            raise ConfigError(f"{shown(name)} is no prompt, {hint(name, list(prompts))}; or {remedy}")
        return True


PLAIN_COLUMNS = LabelledColumns()
"""`query`, and nothing but prompts"""


def content_of(path: Path) -> bytes:
    """The bytes of a file of labelled queries. Raises ConfigError."""
    if what := why_refused(path, ".json"):
        raise ConfigError(f"`data` {path}: {what}")
    with readable(f"`data` {path}"):
        return path.read_bytes()


def read_labelled(
    path: Path, labels: Mapping[str, Sequence[str]], columns: LabelledColumns = PLAIN_COLUMNS
) -> LabelledData:
    """The rows of a file for prompts with these labels; CSV where its name ends in `.csv` or `.tsv`, else JSON lines.

    JSON lines: `{"query": …, "labels": {prompt: label or list of accepted labels}}`. CSV: the columns `query` and the
    prompts' names, several accepted labels separated by `|`, the delimiter detected. UTF-8 or UTF-16. A row counts for
    the prompts that it has a label of. Rows that cannot be used are returned as bad.
    Raises ConfigError for a file that cannot be read, or has no rows.
    """
    name, content = f"`data` {path}", content_of(path)
    is_table = format_of(path) in ("csv", "tsv")
    rows: list[LabelledQuery] = []
    bad: list[BadRow] = []
    with prefixed(name):
        lines = io.BytesIO(utf8_of(content, "the text"))
        found = Rows(lines, "csv" if is_table else "jsonl", columns.query, others=labels)
        known = [column for column in found.header if column != columns.query] if is_table else list(labels)
        for column in columns.labels:
            if column not in known:
                raise ConfigError(f"has no column {column!r}: the columns are {', '.join(map(repr, known))}")
        prompts = {found.header.index(each): each for each in known if is_table and columns.of_prompt(each, labels)}
        for row in found:
            if row.is_blank and not row.fields and row.values is None:
                continue
            try:
                if row.problem:
                    raise ConfigError(row.problem)
                accepted = _accepted(row, prompts, labels) if is_table else _labels_of(row)
                rows.append(_labelled(row, accepted, labels, columns))
            except ConfigError as e:
                bad.append(BadRow(row.number, str(e)))
    if not rows and not bad:
        raise ConfigError(f"{name}: has no rows")
    return LabelledData(path=path, sha256=hashlib.sha256(content).hexdigest(), rows=tuple(rows), bad=tuple(bad))


def refusal(path: Path, bad: Sequence[BadRow], n_rows: int) -> ConfigError:
    """An error that lists the rows which cannot be used."""
    listed = [f"  line {row.line}: {row.reason}" for row in bad[:MAX_LISTED]]
    more = [f"  and {len(bad) - MAX_LISTED} more"] if len(bad) > MAX_LISTED else []
    head = f"`data` {path}: {len(bad)} of {n_rows} rows cannot be used: correct them, or leave them out with `skip_bad`"
    return ConfigError("\n".join([head, *listed, *more]))


def _accepted(row: Row, prompts: Mapping[int, str], labels: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The labels in the cells of CSV."""
    found = {}
    for index, name in prompts.items():
        cell, known = row.fields[index], labels[name]
        if cell.strip():  # spaces that a table's editor left count for nothing
            parts = [part if part in known else part.strip() for part in cell.split("|")]
            found[name] = [cell] if cell in known else parts
    return found


def _labels_of(row: Row) -> JsonObject:
    """The labels of an object of JSON lines. Raises ConfigError."""
    pairs = json.loads(row.line, object_pairs_hook=_once)
    if "labels" not in pairs:
        raise ConfigError('has no \'labels\': write them as "labels": {"PROMPT": "LABEL"}')
    if not isinstance(pairs["labels"], dict):
        raise ConfigError(f"labels: {shown(pairs['labels'])} is not an object of prompts and their labels")
    return pairs["labels"]


def _once(pairs: list[tuple[str, Any]]) -> JsonObject:
    """An object of JSON. Raises ConfigError for a key that is given twice."""
    for key, n in Counter(key for key, _ in pairs).items():
        if n > 1:
            raise ConfigError(f"key {shown(key)} is given twice")
    return dict(pairs)


def _labelled(
    row: Row, values: Mapping[str, Any], labels: Mapping[str, Sequence[str]], columns: LabelledColumns
) -> LabelledQuery:
    if not is_text(row.query):
        raise ConfigError("query: is not valid UTF-8")
    accepted: dict[str, tuple[str, ...]] = {}
    for name, value in values.items():
        if not columns.of_prompt(name, labels) or value is None:
            continue
        several = value if isinstance(value, list) else [value]
        if not several:
            raise ConfigError(f"labels.{name}: is an empty list: leave the prompt out where no label is known")
        for label in several:
            if label not in labels[name]:
                raise ConfigError(
                    f"labels.{name}: {shown(label)} is no label of this prompt, {hint(label, labels[name])}"
                )
        accepted[name] = tuple(dict.fromkeys(several))
    if not accepted:
        raise ConfigError("has no label of any prompt")
    return LabelledQuery(line=row.number, query=row.query, labels=accepted)
