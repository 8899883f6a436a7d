"""Rows of a text file as they come, with all that they hold: lines, rows of CSV, objects of JSON lines."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from ..config.words import kind_of
from .csv_file import CsvFile
from .encoding import LONGEST_LINE, is_text, shown_bytes

NULL = "the query is null"
_N_SHOWN = 60  # characters of a line that is refused
TABLES = (".csv", ".tsv")
OBJECTS = (".jsonl", ".ndjson")
_NO_ROWS = {
    ".json": "is one JSON document: write an object a line, in a file named .jsonl",
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "is a spreadsheet: save it as .csv"),
    **dict.fromkeys((".gz", ".zst", ".bz2", ".xz", ".zip"), "is packed: unpack it"),
}
Kind = Literal["text", "csv", "jsonl"]


@dataclass(frozen=True, slots=True)
class Row:
    """A row with its query, or the reason why it has none."""

    number: int
    """of the line on which it begins, from 1"""
    query: str
    error: str | None = None
    line: bytes = b""
    """the line without its break; not of CSV"""
    fields: tuple[str, ...] = ()
    """of CSV; a byte that is no UTF-8 is a surrogate"""
    values: Mapping[str, object] | None = None
    """of JSON lines, where the line is an object"""

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing on the line."""
        return self.error is None and not self.query.strip()


def kind_of_file(suffix: str) -> Kind:
    """What a file with such an ending of its name has in its lines."""
    lower = suffix.lower()
    return "csv" if lower in TABLES else "jsonl" if lower in OBJECTS else "text"


def why_no_text(suffix: str) -> str | None:
    """What is wrong with a file with such an ending of its name, which is no text; None where nothing is."""
    lower = suffix.lower()
    if lower == ".parquet":
        return "is Parquet: save it as .csv or .jsonl"
    return None if lower == ".json" else _NO_ROWS.get(lower)


def why_no_rows(suffix: str) -> str | None:
    """What is wrong with a file with such an ending of its name, whose lines are no rows; None where nothing is."""
    return _NO_ROWS.get(suffix.lower())


def is_file_ending(suffix: str) -> bool:
    """Whether a name with such an ending is that of a file of data, and of no folder."""
    lower = suffix.lower()
    return lower in _NO_ROWS or lower in (*TABLES, *OBJECTS, ".txt", ".parquet", ".arrow", ".feather")


class Rows:
    """The rows of some lines. A row that is not valid has an error, and those after it follow."""

    def __init__(
        self,
        lines: Iterator[bytes],
        kind: Kind,
        query: str,
        *,
        others: Collection[str] = (),
        header: bytes | None = None,
        first_line: int = 1,
    ) -> None:
        """lines: with their line breaks; query: the column or key with the queries; others: columns that a delimiter
        is known by, too. header: the first line of a file of which lines are a later part, that begins on first_line.

        Raises ConfigError for CSV without a usable header, or without the column.
        """
        self._query = query
        self._shift = first_line - 1
        self.header: tuple[str, ...] = ()
        """the columns of CSV"""
        self.delimiter = ","
        self.next_line = first_line
        """the number of the line behind the last row that was given"""
        if kind == "csv":
            # A byte that is no UTF-8 becomes a surrogate, so that only its own row is refused.
            texts = (line.decode(errors="surrogateescape") for line in lines)
            if header is not None:
                self._shift -= 1
                texts = chain([header.decode(errors="surrogateescape")], texts)  # type: ignore[assignment]
            table = CsvFile(texts, wanted=(query, *others))
            self.header, self.delimiter = table.header, table.delimiter
            self.next_line = table.next_line + self._shift
            at = table.index(query, "name the one with the queries with `query_column`")
            self.index = table.index
            self._rows = self._of_csv(table, at)
        else:
            self._rows = self._of_objects(lines) if kind == "jsonl" else self._of_lines(lines)

    def __iter__(self) -> Iterator[Row]:
        return self

    def __next__(self) -> Row:
        return next(self._rows)

    def _of_lines(self, lines: Iterator[bytes]) -> Iterator[Row]:
        for number, line in enumerate(lines, self._shift + 1):
            self.next_line = number + 1
            yield _decoded(line.rstrip(b"\r\n"), number)

    def _of_csv(self, table: CsvFile, at: int) -> Iterator[Row]:
        for row in table:
            self.next_line = table.next_line + self._shift
            number = row.line + self._shift
            query = row.fields[at] if len(row.fields) > at else ""
            error = row.error and f"line {number} {row.error}"
            if not is_text(query):
                query = shown_bytes(query)
                error = f"line {number} is not valid UTF-8: save the input as UTF-8"
            yield Row(number, query, error, fields=row.fields)

    def _of_objects(self, lines: Iterator[bytes]) -> Iterator[Row]:
        for number, data in enumerate(lines, self._shift + 1):
            self.next_line = number + 1
            line = _decoded(data.strip(), number)
            if line.error or line.is_blank:
                yield line
                continue
            try:
                found = json.loads(line.query)
            except (ValueError, RecursionError) as e:
                yield Row(number, line.query, f"line {number} is not valid JSON: {e}", line.line)
                continue
            values = found if isinstance(found, dict) else None
            query = (values or {}).get(self._query)
            if not isinstance(query, str):
                if values is None or self._query not in values:
                    error = f"line {number} has no text {self._query!r}: name its key with `query_column`"
                elif query is None:
                    error = f"line {number}: {NULL}"
                else:
                    error = f"line {number}: {self._query!r} is {kind_of(query)}, not text: write it in quotes"
                yield Row(number, line.query, error, line.line, values=values)
                continue
            yield Row(number, query, None, line.line, values=values)


def _decoded(line: bytes, number: int) -> Row:
    if len(line) > LONGEST_LINE:
        start = line[:_N_SHOWN].decode(errors="backslashreplace")
        error = f"line {number} has more than {LONGEST_LINE} bytes: give shorter queries, one a line"
        return Row(number, start, error, line)
    try:
        return Row(number, line.decode(), None, line)
    except UnicodeDecodeError as e:
        error = f"line {number} is not valid UTF-8 at byte {e.start}: save the input as UTF-8"
        return Row(number, line.decode(errors="backslashreplace"), error, line)
