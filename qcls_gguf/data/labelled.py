"""Labelled queries of files. All rows are checked when they are read."""

import hashlib
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

from ..config.words import JsonObject, hint, shown
from ..errors import ConfigError, readable
from .lines import is_text
from .rows import Reading, Row, Rows, open_rows

_ITEM = re.compile(r"""(["'])((?:[^\\\x00-\x1f]|\\u[\da-fA-F]{4})*?)\1|(?<![\w.-])(-?\d+)(?![\w.-])""")


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

    __pydantic_config__: ClassVar = {"use_attribute_docstrings": True}  # for the schema of records

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


_N_LISTED = 2  # rows of a message of a few lines; they mostly have one reason
ALL = ("all",)
"""in place of the names of columns: whichever there are"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledColumns(Reading):
    """How labelled rows are read: which columns of a table, and of JSON lines which keys of an object or its labels."""

    labels: tuple[str, ...] = ()
    """those with labels, named after the prompts; empty: all but the ignored ones"""
    ignored: tuple[str, ...] = ()
    """columns that are neither queries nor prompts, or ALL"""

    def are_read(self, name: str) -> bool:
        """Whether a column, other than the queries', is read for its labels; one without a name is an index of rows."""
        return name in self.labels if self.labels else name not in ("", *self.ignored)

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


def read_labelled(
    path: Path, labels: Mapping[str, Sequence[str]], columns: LabelledColumns = PLAIN_COLUMNS
) -> LabelledData:
    """The rows of a file for prompts with these labels.

    JSON lines: `{"query": …, "labels": {prompt: label or list of accepted labels}}`, or the prompts' names beside the
    query. Tables: the columns `query` and the prompts' names, in text several accepted labels: see `parts_of`. Numbers
    and truth values stand for the labels that they are as text. A row counts for the prompts that it has a label of.
    Rows that cannot be used are returned as bad. Raises ConfigError for a file that cannot be read, or has no rows.
    """
    place = f"`data` {path}"
    rows: list[LabelledQuery] = []
    bad: list[BadRow] = []
    with open_rows(str(path), place, columns, labels, is_labelled=True) as found:
        known = [name for name in found.header if name != found.query] or list(labels)
        for name in columns.labels:
            if name not in known:
                raise ConfigError(f"has no column {name!r}: the columns are {', '.join(map(repr, known))}")
        for name in found.header:
            if name != found.query:
                columns.of_prompt(name, labels)
        for row in found:
            if row.is_blank and not row.fields and row.values is None:
                continue
            try:
                rows.append(_labelled(row, labels_in(row, found, labels), labels, columns))
            except ConfigError as e:
                bad.append(BadRow(row.number or 0, str(e)))
    if not rows and not bad:
        raise ConfigError(f"{place}: has no rows")
    with readable(place):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return LabelledData(path=path, sha256=digest, rows=tuple(rows), bad=tuple(bad))


def refusal(path: Path, bad: Sequence[BadRow], n_rows: int) -> ConfigError:
    """An error that lists the rows which cannot be used."""
    more = [f"  and {len(bad) - _N_LISTED} more"] if len(bad) > _N_LISTED else []
    head = f"`data` {path}: {len(bad)} of {n_rows} rows cannot be used: correct them, or leave them out with `skip_bad`"
    return ConfigError("\n".join([head, *(f"  line {row.line}: {row.reason}" for row in bad[:_N_LISTED]), *more]))


def labels_in(row: Row, rows: Rows, prompts: Collection[str] = ()) -> JsonObject:
    """The labels of a row as they stand there, by the names of columns or prompts. Raises ConfigError where it has
    none.
    """
    if row.problem is not None:
        raise ConfigError(row.problem)
    if rows.header:
        return {name: value for name, value in zip(rows.header, row.fields, strict=False) if name != rows.query}
    values = row.values or {}
    labels = values.get("labels")
    if isinstance(labels, list) and labels and all(isinstance(pair, tuple) for pair in labels):  # a map of Parquet
        labels = dict(labels)
    if isinstance(labels, dict):
        return labels
    if "labels" in values and "labels" not in prompts:
        raise ConfigError(f"labels: {shown(labels)} is not an object of prompts and their labels")
    flat = {name: value for name, value in values.items() if name not in (rows.query, rows.query.partition(".")[0])}
    if not flat:
        raise ConfigError('has no \'labels\': write them as "labels": {"PROMPT": "LABEL"}')
    return flat


def label_of(value: Any, labels: Sequence[str]) -> str | None:
    """The label that a value stands for: the same text, else the only one that is the same number or truth value."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    if text in labels:
        return text
    as_value = _as_value(value)
    same = [label for label in labels if as_value is not None and _as_value(label) == as_value]
    return same[0] if len(same) == 1 else None


def is_missing(value: Any) -> bool:
    """Whether a value says that there is none."""
    return value is None or (isinstance(value, float) and math.isnan(value)) or (isinstance(value, str) and not value)


def label_text(value: Any) -> str:
    """The label that a value of a table or of JSON is meant as."""
    value = int(value) if isinstance(value, float) and value.is_integer() else value
    value = value.decode(errors="replace") if isinstance(value, bytes) else value
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _as_value(value: Any) -> tuple[str, object] | None:
    """What a number or a truth value is, also as text; None for other text."""
    if isinstance(value, str):
        text = value.strip()
        if text.lower() in ("true", "false"):
            return "truth", text.lower() == "true"
        try:
            value = int(text) if text.lstrip("-").isdecimal() and text.isascii() else float(text)
        except ValueError:
            return None
    is_number = isinstance(value, int) or (isinstance(value, float | Decimal) and math.isfinite(value))
    return ("truth" if isinstance(value, bool) else "number", value) if is_number else None


def parts_of(cell: str, labels: Sequence[str]) -> list[str]:
    """The labels in a cell of text: between bars, or in a list, of texts or whole numbers, of JSON, Python or numpy.

    Spaces that a table's editor left count for nothing.
    """
    if cell in labels or not cell.strip():
        return [cell] if cell.strip() else []
    if cell.lstrip().startswith("[") and re.fullmatch(r"\[[\s,]*\]", _ITEM.sub("", cell.strip())):
        return [number or json.loads('"' + text.replace('"', '\\"') + '"') for _, text, number in _ITEM.findall(cell)]
    return [part if part in labels else part.strip() for part in cell.split("|")]


def _labelled(
    row: Row, values: Mapping[str, Any], labels: Mapping[str, Sequence[str]], columns: LabelledColumns
) -> LabelledQuery:
    if not is_text(row.text):
        raise ConfigError("query: is not valid UTF-8")
    accepted: dict[str, tuple[str, ...]] = {}
    for name, value in values.items():
        if not columns.of_prompt(name, labels):
            continue
        if is_missing(value):
            if value is None and "null" in labels[name]:
                raise ConfigError(f"labels.{name}: null says that no label is known: write the label null in quotes")
            continue
        several = value if isinstance(value, list) else [value]
        if row.fields and isinstance(value, str):
            several = parts_of(value, labels[name])
            if not several:
                continue
        if not several:
            raise ConfigError(f"labels.{name}: is an empty list: leave the prompt out where no label is known")
        found = [label_of(label, labels[name]) for label in several]
        if None in found:
            wrong = several[found.index(None)]
            raise ConfigError(f"labels.{name}: {shown(wrong)} is no label of this prompt, {hint(wrong, labels[name])}")
        accepted[name] = tuple(dict.fromkeys(label for label in found if label is not None))
    if not accepted:
        raise ConfigError("has no label of any prompt")
    return LabelledQuery(line=row.number or 0, query=row.text, labels=accepted)
