"""Rows of text files as they come, with all that they hold: lines, rows of CSV, objects of JSON lines."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from ..config.words import counted, kind_of, listed, printable, shown
from ..errors import ConfigError
from .encoding import LONGEST_LINE, is_text, shown_bytes

NULL = "the query is null"
_N_SHOWN = 60  # characters of a line that is refused
Format = Literal["parquet", "csv", "tsv", "jsonl", "text"]
FORMATS: Mapping[str, Format] = {
    ".parquet": "parquet", ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".txt": "text",
}  # fmt: skip
"""by the endings of names"""
_REFUSED = {
    ".json": "is one JSON document: write an object a line, in a file named .jsonl",
    ".parquet": "is Parquet, which only `qcls-gguf label` reads: save it as .csv or .jsonl",
    **dict.fromkeys((".arrow", ".feather"), "is a file of Arrow: save it as .csv or .jsonl"),
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "is a spreadsheet: save it as .csv"),
    **dict.fromkeys((".gz", ".zst", ".bz2", ".xz", ".zip"), "is packed: unpack it"),
}


@dataclass(frozen=True, slots=True)
class Row:
    """A row with its query, or what is wrong with it."""

    number: int
    """of the line on which it begins, from 1"""
    query: str
    problem: str | None = None
    """why it has no query"""
    line: bytes = b""
    """the line without its break; not of CSV"""
    fields: tuple[str, ...] = ()
    """of CSV; a byte that is no UTF-8 is a surrogate"""
    values: Mapping[str, Any] | None = None
    """of JSON lines, where the line is an object"""

    @property
    def error(self) -> str | None:
        """What is wrong with it, with the line's number."""
        return None if self.problem is None else placed(f"line {self.number}", self.problem)

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing on the line."""
        return self.problem is None and not self.query.strip()


def placed(place: str, problem: str) -> str:
    """What is wrong, and where."""
    return f"{place}{' ' if problem.startswith(('is ', 'has ')) else ': '}{problem}"


def format_of(path: Path) -> Format:
    """The format by the ending of a name; files with other endings have one query per line."""
    return FORMATS.get(path.suffix.lower(), "text")


def why_refused(path: Path, *accepted: str) -> str | None:
    """Why a file cannot be read, by the ending of its name; None if it can.

    accepted: endings that the caller reads.
    """
    suffix = path.suffix.lower()
    return None if suffix in accepted else _REFUSED.get(suffix)


DELIMITERS = (",", ";", "\t")


def listed_columns(names: Sequence[str]) -> str:
    """Which columns there are, as messages have it."""
    return f"the columns are {listed(list(map(shown, names)))}"


def check_once(columns: Sequence[str]) -> None:
    """Raise ConfigError where two columns have one name."""
    twice = next((name for name, n in Counter(columns).items() if n > 1), None)
    if twice is not None:
        raise ConfigError(f"column {shown(twice)} is given twice: name each column, or remove those that are empty")


class CsvFile:
    """The header of CSV, and its rows as they come, without queries; blank lines are rows without fields."""

    def __init__(self, lines: Iterator[str], wanted: Collection[str] = ()) -> None:
        """lines: with their line breaks. wanted: columns by which the delimiter is known; else it is the one that
        parts the header most often; a byte that is no UTF-8 is a surrogate. Raises ConfigError where the header is
        none, or names a column twice.
        """
        first = next(lines, "")
        if not is_text(first):
            raise ConfigError("the header is not valid UTF-8: save the file as UTF-8")
        if first.startswith("sep="):
            raise ConfigError("the first line, sep=, is a note for spreadsheets and no header: remove it")
        self.delimiter, header = _header(first, wanted)
        self.header = tuple(name.strip() for name in header)
        if not any(self.header):
            raise ConfigError("has no header: the first line names the columns")
        check_once(self.header)
        self._reader = csv.reader(lines, delimiter=self.delimiter, strict=True)

    def index(self, column: str, remedy: str) -> int:
        """Where a column stands. Raises ConfigError where there is none; remedy: what to do then."""
        if column not in self.header:
            raise ConfigError(f"has no column {column!r}: {listed_columns(self.header)}; {remedy}")
        return self.header.index(column)

    @property
    def next_line(self) -> int:
        """The number of the line after the last row that was given; the header is the first."""
        return self._reader.line_num + 2

    def __iter__(self) -> Iterator[Row]:
        while True:
            line, problem = self.next_line, None
            fields: tuple[str, ...] = ()
            try:
                fields = tuple(next(self._reader))
            except StopIteration:
                return
            except csv.Error as e:
                problem = f"is not valid CSV: {_said(e)}"
            if not any(field.strip() for field in fields):
                fields = ()
            elif (n := len(fields)) != len(self.header):
                remedy = f"quote those with a {self.delimiter!r}" if n > len(self.header) else "write empty ones, too"
                problem = f"has {counted(n, 'field')}, the header {len(self.header)}: {remedy}"
            yield Row(line, "", problem, fields=fields)


_CSV_MISTAKES = {
    "field limit": f"a field has more than {csv.field_size_limit()} characters: shorten it, or close the quotes that "
    "begin it",
    "unexpected end": "a quoted field has no end: close its quotes, and double those that are part of it",
    "new-line character": "a carriage return stands within a field: put the field in quotes, or, where it is to end a "
    "line, save the file with other line ends",
}
"""What is wrong and what to do, by the words of Python's csv."""


def _said(error: csv.Error) -> str:
    """What is wrong, and what to do."""
    what = printable(str(error))
    other = f"{what}: double the quotes that are part of a quoted field"
    return next((told for words, told in _CSV_MISTAKES.items() if words in what), other)


def _header(first: str, wanted: Collection[str]) -> tuple[str, list[str]]:
    """The delimiter and the names. A line with quotes may be valid CSV with some of the delimiters only."""
    found: list[tuple[str, list[str]]] = []
    errors: list[ConfigError] = []
    for delimiter in DELIMITERS:
        try:
            found.append((delimiter, _fields(first, delimiter)))
        except ConfigError as e:
            errors.append(e)
    best = max(found, key=lambda each: (len(set(each[1]) & set(wanted)), len(each[1])), default=("", []))
    # one name only, or part of one: the line is meant for a delimiter with which it is not valid
    if errors and (len(best[1]) < 2 or any(name.count('"') % 2 for name in best[1])):
        raise errors[0]
    return best


def _fields(line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=delimiter, strict=True), [])
    except csv.Error as e:
        raise ConfigError(f"the first line, which names all columns, is not valid CSV: {_said(e)}") from None


class Rows:
    """The rows of some lines. A row that is not valid has a problem, and the rows after it follow."""

    def __init__(
        self,
        lines: Iterator[bytes],
        format_: Format,
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
        self.header: tuple[str, ...] = ()
        """the columns of CSV"""
        self.next_line = first_line
        """the number of the line after the last row that was given"""
        if format_ in ("csv", "tsv"):
            # A byte that is no UTF-8 becomes a surrogate, so that only its own row is refused.
            first = [] if header is None else [header]
            table = CsvFile((line.decode(errors="surrogateescape") for line in chain(first, lines)), (query, *others))
            self.header, self.index = table.header, table.index
            shift = first_line - 1 - len(first)
            self.next_line = table.next_line + shift
            at = table.index(query, "name the one with the queries with `query_column`")
            self._rows = self._of_csv(table, at, shift)
        else:
            self._rows = self._of_lines(lines, _object if format_ == "jsonl" else lambda row, query: row)

    def __iter__(self) -> Iterator[Row]:
        return self

    def __next__(self) -> Row:
        return next(self._rows)

    def _of_lines(self, lines: Iterator[bytes], read: Callable[[Row, str], Row]) -> Iterator[Row]:
        for number, line in enumerate(lines, self.next_line):
            self.next_line = number + 1
            yield read(_decoded(line.rstrip(b"\r\n"), number), self._query)

    def _of_csv(self, table: CsvFile, at: int, shift: int) -> Iterator[Row]:
        for row in table:
            self.next_line = table.next_line + shift
            query, problem = row.fields[at] if len(row.fields) > at else "", row.problem
            if not is_text(query):
                query, problem = shown_bytes(query), "is not valid UTF-8: save the input as UTF-8"
            yield Row(row.number + shift, query, problem, fields=row.fields)


def _decoded(line: bytes, number: int) -> Row:
    if len(line) > LONGEST_LINE:
        start = line[:_N_SHOWN].decode(errors="backslashreplace")
        return Row(number, start, f"has more than {LONGEST_LINE} bytes: give shorter queries, one a line", line)
    try:
        return Row(number, line.decode(), None, line)
    except UnicodeDecodeError as e:
        problem = f"is not valid UTF-8 at byte {e.start}: save the input as UTF-8"
        return Row(number, line.decode(errors="backslashreplace"), problem, line)


def _object(row: Row, key: str) -> Row:
    """A line of JSON as a row with the object's query."""
    if row.problem or row.is_blank:
        return row
    try:
        found = json.loads(row.query)
    except (ValueError, RecursionError) as e:
        return replace(row, problem=f"is not valid JSON: {e}")
    values = found if isinstance(found, dict) else None
    if values is None or key not in values:
        return replace(row, values=values, problem=f"has no text {key!r}: name its key with `query_column`")
    query = values[key]
    if isinstance(query, str):
        return replace(row, values=values, query=query)
    why = f"{key!r} is {kind_of(query)}, not text: write it in quotes"
    return replace(row, values=values, problem=NULL if query is None else why)
