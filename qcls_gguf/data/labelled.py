"""Labelled queries from JSON lines or CSV. All rows are checked when they are read."""

from __future__ import annotations

import difflib
import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config.words import shown
from ..errors import ConfigError
from .csv_file import CsvFile
from .encoding import utf8_of
from .queries import QUERY
from .rows import why_no_text

_MAX_LISTED = 20


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
class Labelled:
    """The rows of a file of labelled queries."""

    path: Path
    sha256: str
    rows: tuple[LabelledQuery, ...]
    bad: tuple[BadRow, ...]


ALL = ("all",)
"""in place of the names of columns: whichever there are"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledColumns:
    """Which columns of a table are read."""

    query: str = QUERY
    """the one with the queries; of JSON lines the key"""
    ignored: tuple[str, ...] = ()
    """columns that are neither queries nor prompts, or ALL"""


PLAIN_COLUMNS = LabelledColumns()
"""`query`, and nothing but prompts"""


def read_labelled(
    path: Path,
    labels: Mapping[str, Sequence[str]],
    columns: LabelledColumns = PLAIN_COLUMNS,
    *,
    called: str = "data",
) -> Labelled:
    """The rows of a file for prompts with these labels; CSV where its name ends in `.csv` or `.tsv`, else JSON lines.

    JSON lines: `{"query": …, "labels": {prompt: label or list of accepted labels}}`. CSV: the columns `query` and the
    prompts' names, several accepted labels separated by `|`, the delimiter detected. UTF-8 or UTF-16. A row counts for
    the prompts that it has a label of. Rows that cannot be used are returned as bad. called: what errors call the file.
    Raises ConfigError for a file that cannot be read, or has no rows.
    """
    name = f"`{called}` {path}"
    if what := why_no_text(path.suffix):
        raise ConfigError(f"{name}: {what}")
    try:
        content = path.read_bytes()
    except OSError as e:
        raise ConfigError(f"{name}: cannot be read: {e.strerror}") from None
    sha256 = hashlib.sha256(content).hexdigest()
    read = _csv_rows if path.suffix.lower() in (".csv", ".tsv") else _json_rows
    rows: list[LabelledQuery] = []
    bad: list[BadRow] = []
    try:
        content = utf8_of(content, "the text")
        for row in read(content, labels, columns):
            (rows if isinstance(row, LabelledQuery) else bad).append(row)  # type: ignore[arg-type]
    except ConfigError as e:
        raise ConfigError(f"{name}: {e}") from None
    if not rows and not bad:
        raise ConfigError(f"{name}: has no rows")
    return Labelled(path=path, sha256=sha256, rows=tuple(rows), bad=tuple(bad))


def refusal(path: Path, bad: Sequence[BadRow], n_rows: int) -> ConfigError:
    """An error that lists the rows which cannot be used."""
    listed = [f"  line {row.line}: {row.reason}" for row in bad[:_MAX_LISTED]]
    more = [f"  and {len(bad) - _MAX_LISTED} more"] if len(bad) > _MAX_LISTED else []
    head = f"`data` {path}: {len(bad)} of {n_rows} rows cannot be used: correct them, or leave them out with `skip_bad`"
    return ConfigError("\n".join([head, *listed, *more]))


def _json_rows(
    content: bytes, labels: Mapping[str, Sequence[str]], columns: LabelledColumns
) -> Iterator[LabelledQuery | BadRow]:
    for line, text in enumerate(content.split(b"\n"), 1):
        if not text.strip():
            continue
        try:
            row = json.loads(text.decode(), object_pairs_hook=_object)
            if not isinstance(row, dict):
                raise ConfigError('expected an object, {"query": …, "labels": {…}}')
            for key in (columns.query, "labels"):
                if key not in row:
                    raise ConfigError(f"has no {key!r}")
            accepted = row["labels"]
            if not isinstance(accepted, dict):
                raise ConfigError(f"labels: {shown(accepted)} is not an object of prompts and their labels")
            yield _row(line, row[columns.query], accepted, labels)
        except UnicodeDecodeError as e:
            yield BadRow(line, f"is not valid UTF-8 at byte {e.start}")
        except json.JSONDecodeError as e:
            yield BadRow(line, f"is not valid JSON: {e.msg} at character {e.pos + 1}")
        except ValueError:
            yield BadRow(line, "has a number of thousands of digits")
        except RecursionError:
            yield BadRow(line, "is not valid JSON: nested too deeply")
        except ConfigError as e:
            yield BadRow(line, str(e))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, object]:
    by_key: dict[str, object] = {}
    for key, value in pairs:
        if key in by_key:
            raise ConfigError(f"key {shown(key)} is given twice")
        by_key[key] = value
    return by_key


def _csv_rows(
    content: bytes, labels: Mapping[str, Sequence[str]], columns: LabelledColumns
) -> Iterator[LabelledQuery | BadRow]:
    # A byte that is no UTF-8 becomes a surrogate, so that only its own row is refused.
    text = io.StringIO(content.decode(errors="surrogateescape"), newline="")
    table = CsvFile(iter(text), wanted=(columns.query, *labels))
    at = table.index(columns.query, "name the one with the queries with `query_column`")
    prompts: dict[int, str] = {}
    for index, name in enumerate(table.header):
        if index == at or name in columns.ignored:
            continue
        if name in labels:
            prompts[index] = name
        elif columns.ignored != ALL:
            remedy = "leave it out of the evaluation with `ignore_columns`"
            raise ConfigError(f"column {shown(name)} is no prompt{_hint(name, labels)}; or {remedy}")
    for row in table:
        if not row.fields and row.error is None:
            continue
        try:
            if row.error is not None:
                raise ConfigError(row.error)
            cells = {name: row.fields[index] for index, name in prompts.items()}
            accepted = {name: _accepted_cell(cell, labels[name]) for name, cell in cells.items() if cell.strip()}
            yield _row(row.line, row.fields[at], accepted, labels)
        except ConfigError as e:
            yield BadRow(row.line, str(e))


def _accepted_cell(cell: str, labels: Sequence[str]) -> list[str]:
    if cell in labels:
        return [cell]
    return [part if part in labels else part.strip() for part in cell.split("|")]  # spaces that a table's editor left


def _row(line: int, query: Any, values: Mapping[str, Any], labels: Mapping[str, Sequence[str]]) -> LabelledQuery:
    if not isinstance(query, str):
        raise ConfigError(f"query: {shown(query)} is not text")
    if any("\ud800" <= c <= "\udfff" for c in query):
        raise ConfigError("query: is not valid UTF-8")
    accepted: dict[str, tuple[str, ...]] = {}
    for name, value in values.items():
        if name not in labels:
            raise ConfigError(f"{shown(name)} is no prompt{_hint(name, labels)}")
        if value is None:
            continue
        several = value if isinstance(value, list) else [value]
        if not several:
            raise ConfigError(f"labels.{name}: is an empty list: leave the prompt out where no label is known")
        for label in several:
            if label not in labels[name]:
                raise ConfigError(
                    f"labels.{name}: {shown(label)} is no label of this prompt{_hint(label, labels[name])}"
                )
        accepted[name] = tuple(dict.fromkeys(several))
    if not accepted:
        raise ConfigError("has no label of any prompt")
    return LabelledQuery(line=line, query=query, labels=accepted)


def _hint(text: Any, known: Mapping[str, Any] | Sequence[str]) -> str:
    close = difflib.get_close_matches(str(text), list(known), n=1)
    return f", did you mean {close[0]!r}?" if close else f": known are {', '.join(known)}"
