"""Queries from a file or from standard input, as they arrive: a line each, or a row of CSV or JSON lines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError
from .csv_file import CsvFile
from .encoding import LONGEST_LINE, byte_lines

_N_SHOWN = 60  # characters of a line that is refused
QUERY = "query"
_TABLES = (".csv", ".tsv")
_OBJECTS = (".jsonl", ".ndjson")


@dataclass(frozen=True, slots=True)
class Line:
    """A query, or the reason why the line has none."""

    text: str
    error: str | None = None
    number: int | None = None
    """of the line in the input, from 1; None for a query that was given or typed"""
    id: str | None = None
    """what the input's column of ids has"""

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing on the line."""
        return self.error is None and not self.text.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Which columns of a table, or keys of JSON lines, are read."""

    query: str | None = None
    """None: `query`"""
    id: str | None = None
    """None: rows have no ids"""

    @property
    def are_named(self) -> bool:
        return self.query is not None or self.id is not None


def check_source(source: str) -> None:
    """Raise ConfigError for an input that cannot be read; nothing is read yet."""
    if source == "-":
        return
    if not os.path.exists(source):
        raise ConfigError(f"`input` {source}: no such file")
    if os.path.isdir(source) or not os.access(source, os.R_OK):
        raise ConfigError(f"`input` {source}: cannot be read: give a readable file, or - for standard input")


def count_lines(source: str) -> int | None:
    """The lines of a file, blank ones included; None for what can be read only once."""
    path = Path(source)
    if source == "-" or not path.is_file():
        return None
    last, n_lines = b"\n", 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            last, n_lines = block[-1:], n_lines + block.count(b"\n")
    return n_lines + (last != b"\n")


def read_queries(source: str, *, blank: bool = False, columns: Columns | None = None) -> Iterator[Line]:
    """The queries of a file, or of standard input for `-`, UTF-8 or UTF-16: a line each, without its line break.

    A file named .csv or .tsv is a table with a header, one named .jsonl has an object a line; of both the query is the
    column or key `query`, unless columns says otherwise. Where columns names one, any other input is a table, too.
    blank: also return blank lines. A line that is not valid is returned with an error, and the lines after it follow.
    Raises ConfigError for a file that cannot be read, or lacks a column.
    """
    chosen = columns or Columns()
    suffix = Path(source).suffix.lower()
    name = f"`input` {source}"
    try:
        with nullcontext(sys.stdin.buffer) if source == "-" else Path(source).open("rb") as file:
            lines = byte_lines(file, name)
            if suffix in _OBJECTS:
                found = _objects(lines, chosen)
            elif suffix in _TABLES or chosen.are_named:
                found = _rows(lines, chosen, name)
            else:
                found = (_decoded(line.rstrip(b"\r\n"), number) for number, line in enumerate(lines, 1))
            yield from (line for line in found if blank or not line.is_blank)
    except OSError as e:
        raise ConfigError(f"{name}: cannot be read: {e.strerror}") from None


def _decoded(line: bytes, number: int) -> Line:
    if len(line) > LONGEST_LINE:
        start = line[:_N_SHOWN].decode(errors="backslashreplace")
        error = f"line {number} has more than {LONGEST_LINE} bytes: give shorter queries, one a line"
        return Line(start, error, number)
    try:
        return Line(line.decode(), number=number)
    except UnicodeDecodeError as e:
        error = f"line {number} is not valid UTF-8 at byte {e.start}: save the input as UTF-8"
        return Line(line.decode(errors="backslashreplace"), error, number)


def _rows(lines: Iterator[bytes], columns: Columns, name: str) -> Iterator[Line]:
    query = columns.query or QUERY
    try:
        # A byte that is no UTF-8 becomes a surrogate, so that only its own row is refused.
        table = CsvFile((line.decode(errors="surrogateescape") for line in lines), wanted=(query, columns.id or query))
        at = table.index(query, "name the one with the queries with `query_column`")
        id_at = table.index(columns.id, "name the one with the ids with `id`") if columns.id is not None else None
    except ConfigError as e:
        raise ConfigError(f"{name}: {e}") from None
    for row in table:
        text = row.fields[at] if len(row.fields) > at else ""
        id_ = row.fields[id_at] if id_at is not None and len(row.fields) > id_at else None
        line = Line(text, row.error and f"line {row.line} {row.error}", row.line, id_)
        yield line if _is_text(f"{text}{id_}") else _not_utf8(line)


def _is_text(text: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" for c in text)


def _not_utf8(line: Line) -> Line:
    text, id_ = (
        part and part.encode(errors="surrogateescape").decode(errors="backslashreplace")
        for part in (line.text, line.id)
    )
    return Line(text or "", f"line {line.number} is not valid UTF-8: save the input as UTF-8", line.number, id_)


def _objects(lines: Iterator[bytes], columns: Columns) -> Iterator[Line]:
    query = columns.query or QUERY
    for number, data in enumerate(lines, 1):
        line = _decoded(data.strip(), number)
        if line.error or line.is_blank:
            yield line
            continue
        try:
            row = json.loads(line.text)
        except (ValueError, RecursionError) as e:
            yield Line(line.text, f"line {number} is not valid JSON: {e}", number)
            continue
        values = row if isinstance(row, dict) else {}
        if not isinstance(values.get(query), str):
            yield Line(line.text, f"line {number} has no text {query!r}: name its key with `query_column`", number)
            continue
        id_ = values.get(columns.id) if columns.id is not None else None
        yield Line(values[query], None, number, None if id_ is None else str(id_))
