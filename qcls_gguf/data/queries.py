"""Queries from a file or from standard input, as they arrive: a line each, or a row of CSV or JSON lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError
from .encoding import ByteLines, is_text, shown_bytes
from .rows import Row, Rows, kind_of_file, why_no_rows

QUERY = "query"


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
    """Raise ConfigError for an input that cannot be read, or whose name says that its lines are no rows.

    `read_queries` does this itself when it begins to read; others call it to know before they load a model.
    """
    if source == "-":
        return
    name = f"`queries` {source}"
    if not os.path.exists(source):
        raise ConfigError(f"{name}: no such file")
    if os.path.isdir(source) or not os.access(source, os.R_OK):
        kind = "is a folder" if os.path.isdir(source) else "cannot be read"
        raise ConfigError(f"{name}: {kind}: give a readable file, or - for standard input")
    suffix = Path(source).suffix
    what = "is Parquet, which `qcls-gguf label` reads" if suffix.lower() == ".parquet" else why_no_rows(suffix)
    if what is not None:
        raise ConfigError(f"{name}: {what}")


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
    blank: also return blank lines. A line that is not valid is returned with an
    error, and the lines after it follow. Raises ConfigError for a file that cannot be read, or lacks a column.
    """
    chosen = columns or Columns()
    kind = kind_of_file(Path(source).suffix)
    if kind == "text" and chosen.are_named:
        kind = "csv"
    name = f"`queries` {source}"
    check_source(source)
    query = chosen.query or QUERY
    try:
        with (
            nullcontext(sys.stdin.buffer) if source == "-" else Path(source).open("rb") as file,
            closing(ByteLines(file, name)) as lines,
        ):
            try:
                rows = Rows(lines, kind, query, others=() if chosen.id is None else (chosen.id,))
                id_at = None
                if kind == "csv" and chosen.id is not None:
                    id_at = rows.index(chosen.id, "name the one with the ids with `id`")
            except ConfigError as e:
                raise ConfigError(f"{name}: {e}") from None
            for row in rows:
                line = _line(row, chosen.id, id_at)
                if blank or not line.is_blank:
                    yield line
    except OSError as e:
        raise ConfigError(f"{name}: cannot be read: {e.strerror}") from None


def _line(row: Row, id_: str | None, id_at: int | None) -> Line:
    if id_at is not None:
        value = row.fields[id_at] if len(row.fields) > id_at else None
        if value is None or is_text(value):
            return Line(row.query, row.error, row.number, value)
        error = f"line {row.number} is not valid UTF-8: save the input as UTF-8"
        return Line(row.query, error, row.number, shown_bytes(value))
    found = row.values.get(id_) if row.values is not None and id_ is not None and row.error is None else None
    return Line(row.query, row.error, row.number, None if found is None else str(found))
