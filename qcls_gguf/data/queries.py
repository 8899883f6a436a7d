"""Queries from a file or from standard input, as they arrive: a line each, or a row of CSV or JSON lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError
from .encoding import ByteLines, is_text, shown_bytes
from .rows import Row, Rows, format_of, why_refused

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


def check_source(source: str) -> None:
    """Raise ConfigError for an input that cannot be read, or whose name says that its lines are no rows.

    `read_queries` does this itself when it begins to read; others call it to know before they load a model.
    """
    if source == "-":
        return
    what = why_refused(Path(source))
    if not os.path.exists(source):
        what = "no such file"
    elif os.path.isdir(source) or not os.access(source, os.R_OK):
        what = "is a folder" if os.path.isdir(source) else "cannot be read"
    if what:
        raise ConfigError(f"`queries` {source}: {what}")


def count_lines(source: str) -> int | None:
    """The lines of a file, blank ones included; None for what can be read only once."""
    if source == "-" or not os.path.isfile(source):
        return None
    with open(source, "rb") as file:
        return sum(1 for _ in file)


def read_queries(source: str, *, blank: bool = False, columns: Columns | None = None) -> Iterator[Line]:
    """The queries of a file, or of standard input for `-`, UTF-8 or UTF-16: a line each, without its line break.

    A file named .csv or .tsv is a table with a header, one named .jsonl has an object a line; of both the query is the
    column or key `query`, unless columns says otherwise. Where columns names one, any other input is a table, too.
    blank: also return blank lines. A line that is not valid is returned with an
    error, and the lines after it follow. Raises ConfigError for a file that cannot be read, or lacks a column.
    """
    chosen = columns or Columns()
    format_ = format_of(Path(source))
    if format_ == "text" and (chosen.query, chosen.id) != (None, None):
        format_ = "csv"
    name = f"`queries` {source}"
    check_source(source)
    try:
        with (
            nullcontext(sys.stdin.buffer) if source == "-" else Path(source).open("rb") as file,
            closing(ByteLines(file, name)) as lines,
        ):
            try:
                rows = Rows(lines, format_, chosen.query or QUERY, others=() if chosen.id is None else (chosen.id,))
                if rows.header and chosen.id is not None:
                    rows.index(chosen.id, "name the one with the ids with `id`")
            except ConfigError as e:
                raise ConfigError(f"{name}: {e}") from None
            for row in rows:
                line = _line(row, rows.header, chosen.id)
                if blank or not line.is_blank:
                    yield line
    except OSError as e:
        raise ConfigError(f"{name}: cannot be read: {e.strerror}") from None


def _line(row: Row, header: Sequence[str], id_: str | None) -> Line:
    values = dict(zip(header, row.fields, strict=False)) if header else row.values if row.error is None else None
    found = values.get(id_) if values and id_ is not None else None
    if not isinstance(found, str) or is_text(found):
        return Line(row.query, row.error, row.number, None if found is None else str(found))
    return Line(
        row.query, f"line {row.number} is not valid UTF-8: save the input as UTF-8", row.number, shown_bytes(found)
    )
