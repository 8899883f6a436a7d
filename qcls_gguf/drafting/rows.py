"""Prompts and labels found in labelled rows: which column has the texts, which ones have labels, and how often."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from ..config.prompt import NO_CONTENT
from ..config.words import ALIKE, counted, seen_as, shown
from ..data.encoding import utf8_of
from ..data.labelled import PLAIN_COLUMNS, LabelledColumns, content_of
from ..data.rows import CsvFile
from ..errors import ConfigError, prefixed
from .draft import DraftPrompt

_QUERY_NAMES = ("query", "text", "title", "message", "sentence", "input", "question", "description", "name")
_MOST_LABELS = 100
_LEAST_EACH = 3
"""how often a value comes on average, where values are labels"""
_RARE = 3
"""rows; a label with fewer is named as rare"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelColumns:
    """What labelled rows say about the prompts that they were labelled for."""

    n_rows: int
    query: str
    """the column, or key, with the texts"""
    prompts: tuple[DraftPrompt, ...]
    ignored: tuple[str, ...]
    """columns that are neither"""
    remarks: tuple[str, ...]
    """what a reader should know, a sentence each"""


def find_labels(path: Path, query: str | None = None, columns: LabelledColumns = PLAIN_COLUMNS) -> LabelColumns:
    """Look through a file of labelled queries, as `eval` takes it.

    query: the column with the texts; None: the one with a usual name, else the one with the longest different texts.
    columns: which of the others have labels; where it names none, those with few different values. Raises ConfigError.
    """
    content = utf8_of(content_of(path), f"`data` {path}")
    with prefixed(f"`data` {path}"):
        if path.suffix.lower() in (".csv", ".tsv"):
            return _of_table(_table(content), query, columns)
        return _of_objects(content, query or "query", columns)


def _table(content: bytes) -> dict[str, list[str]]:
    """The cells of each column. Raises ConfigError for the first row that cannot be used."""
    try:
        table = CsvFile(iter(StringIO(content.decode(), newline="")))
    except UnicodeDecodeError as e:
        raise ConfigError(f"is not valid UTF-8 at byte {e.start}: save it as UTF-8") from None
    cells: dict[str, list[str]] = {name: [] for name in table.header}
    for row in table:
        if row.error:
            raise ConfigError(row.error)
        if row.fields:
            for name, cell in zip(table.header, row.fields, strict=True):
                cells[name].append(cell.strip())
    return cells


def _of_table(cells: Mapping[str, list[str]], query: str | None, columns: LabelledColumns) -> LabelColumns:
    for name in (*columns.labels, *([query] if query is not None else [])):
        if name not in cells:
            raise ConfigError(f"has no column {name!r}: the columns are {', '.join(map(repr, cells))}")
    n_rows = len(next(iter(cells.values())))
    if not n_rows:
        raise ConfigError("has no rows")
    chosen = query or _query_column(cells, columns)
    counts = {
        name: Counter(part.strip() for cell in column for part in cell.split("|") if part.strip())
        for name, column in cells.items()
        if name != chosen
    }
    labelled = {
        name: count
        for name, count in counts.items()
        if columns.are_read(name) and (columns.labels or _are_labels(count))
    }
    return _found(n_rows, chosen, labelled, tuple(counts))


def _query_column(cells: Mapping[str, list[str]], columns: LabelledColumns) -> str:
    left = [name for name in cells if name not in (*columns.labels, *columns.ignored)]
    for usual in _QUERY_NAMES:
        for name in left:
            if name.lower() == usual:
                return name
    if not left:
        raise ConfigError("has no column left for the texts")
    return max(left, key=lambda name: (len(set(cells[name])) * sum(map(len, cells[name])), name))


def _are_labels(counts: Counter[str]) -> bool:
    """Whether values are so few and come so often that they are labels."""
    return 2 <= len(counts) <= _MOST_LABELS and counts.total() >= _LEAST_EACH * len(counts)


def _of_objects(content: bytes, query: str, columns: LabelledColumns) -> LabelColumns:
    counts: dict[str, Counter[str]] = {}
    n_rows = 0
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as e:
            raise ConfigError(f"line {number} is not valid JSON: {e}") from None
        labels: Any = row.get("labels") if isinstance(row, dict) else None
        if not isinstance(labels, dict):
            raise ConfigError(f'line {number} is not an object {{"{query}": …, "labels": {{…}}}}')
        n_rows += 1
        for name, value in labels.items():
            several = value if isinstance(value, list) else [value]
            counts.setdefault(str(name), Counter()).update(each for each in several if isinstance(each, str))
    for name in columns.labels:
        if name not in counts:
            raise ConfigError(f"has no labels of {name!r}: it has those of {', '.join(map(repr, counts))}")
    return _found(n_rows, query, {name: counts[name] for name in counts if columns.are_read(name)}, ())


def _found(n_rows: int, query: str, counts: Mapping[str, Counter[str]], others: Sequence[str]) -> LabelColumns:
    if not counts:
        raise ConfigError(
            f"has no column of labels: none but {query!r} has 2 to {_MOST_LABELS} values, each {_LEAST_EACH} times on "
            "average; name them with `label_column`"
        )
    prompts, remarks = [], []
    for name, count in counts.items():
        ordered = sorted(count, key=lambda label: (label.lower() in NO_CONTENT, -count[label], label))
        rare = [f"{shown(label, quoted=False)} ({count[label]})" for label in ordered if count[label] < _RARE]
        note = f"labels given {counted(count.total(), 'time')} in the data"
        if rare:
            note += f"; rare: {', '.join(rare)}"
        prompts.append(DraftPrompt(name=name, labels=tuple(ordered), note=note))
        if rare:
            remarks.append(f"{name}: rare labels, too few rows to test them: {', '.join(rare)}; remove typing errors")
        remarks += _alike(name, ordered)
    ignored = tuple(name for name in others if name not in counts)
    return LabelColumns(n_rows=n_rows, query=query, prompts=tuple(prompts), ignored=ignored, remarks=tuple(remarks))


def _alike(name: str, labels: Sequence[str]) -> list[str]:
    """A sentence for each label that a reader takes for an earlier one."""
    seen: dict[str, str] = {}
    sentences = []
    for label in labels:
        key = seen_as(label)
        if key in seen:
            sentences.append(f"{name}: {shown(seen[key])} and {shown(label)} {ALIKE}: correct the data")
        seen.setdefault(key, label)
    return sentences
