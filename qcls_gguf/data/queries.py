"""Queries from a file or from standard input, as they arrive: a line each, or a row of CSV or JSON lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError, prefixed, readable
from .encoding import ByteLines
from .rows import Rows, format_of, why_refused

QUERY = "query"


@dataclass(frozen=True, slots=True)
class Line:
    """A query, or the reason why the line has none."""

    text: str
    error: str | None = None
    number: int | None = None
    """of the line in the input, from 1; None for a query that was given or typed"""

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing on the line."""
        return self.error is None and not self.text.strip()


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


def check_queries(source: str, query_column: str | None) -> None:
    """Raise ConfigError for an input that cannot be read, or a table without the column."""
    check_source(source)
    if os.path.isfile(source):
        next(read_queries(source, query_column=query_column), None)


def read_queries(source: str, *, blank: bool = False, query_column: str | None = None) -> Iterator[Line]:
    """The queries of a file, or of standard input for `-`, UTF-8 or UTF-16: a line each, without its line break.

    A file named .csv or .tsv is a table with a header, one named .jsonl has an object a line; of both the query is the
    column or key `query`, unless query_column names another; with it any other input is a table, too. blank: also
    return blank lines. A line that is not valid is returned with an error, and the lines after it follow. Raises
    ConfigError for a file that cannot be read, or lacks the column.
    """
    format_ = format_of(Path(source))
    if format_ == "text" and query_column is not None:
        format_ = "csv"
    name = f"`queries` {source}"
    check_source(source)
    with (
        readable(name),
        nullcontext(sys.stdin.buffer) if source == "-" else Path(source).open("rb") as file,
        closing(ByteLines(file, name)) as lines,
    ):
        with prefixed(name):
            rows = Rows(lines, format_, query_column or QUERY)
        for row in rows:
            line = Line(row.query, row.error, row.number)
            if blank or not line.is_blank:
                yield line


def all_queries(source: str, query_column: str | None = None) -> list[str]:
    """The texts of all queries of an input, without blank ones. Raises ConfigError also where one is not valid."""
    lines = list(read_queries(source, query_column=query_column))
    if error := next((line.error for line in lines if line.error), None):
        raise ConfigError(f"`queries` {source}: {error}")
    return [line.text for line in lines]
