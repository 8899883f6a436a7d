"""Rows of CSV, whose delimiter the header tells."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ..config.words import counted, printable, shown
from ..errors import ConfigError
from .encoding import is_text

DELIMITERS = (",", ";", "\t")
_MAX_LISTED = 20


@dataclass(frozen=True, slots=True)
class CsvRow:
    """A row: its fields, or what is wrong with it."""

    line: int
    """on which it begins"""
    fields: tuple[str, ...]
    error: str | None = None


class CsvFile:
    """The header of CSV, and its rows as they come; blank lines are rows without fields."""

    def __init__(self, lines: Iterator[str], *, wanted: Collection[str] = ()) -> None:
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
        twice = next((name for name, n in Counter(self.header).items() if n > 1), None)
        if twice == "":
            raise ConfigError("several columns have no name: name them, or remove those that are empty")
        if twice is not None:
            raise ConfigError(f"column {shown(twice)} is given twice: rename one")
        self._reader = csv.reader(lines, delimiter=self.delimiter, strict=True)

    def index(self, column: str, remedy: str) -> int:
        """Where a column stands. Raises ConfigError where there is none; remedy: what to do then."""
        if column not in self.header:
            more = f" and {len(self.header) - _MAX_LISTED} more" if len(self.header) > _MAX_LISTED else ""
            names = ", ".join(map(shown, self.header[:_MAX_LISTED])) + more
            raise ConfigError(f"has no column {column!r}: the columns are {names}; {remedy}")
        return self.header.index(column)

    @property
    def next_line(self) -> int:
        """The number of the line behind the last row that was given; the header is the first."""
        return self._reader.line_num + 2

    def __iter__(self) -> Iterator[CsvRow]:
        while True:
            line = self.next_line
            try:
                fields = tuple(next(self._reader))
            except StopIteration:
                return
            except csv.Error as e:
                yield CsvRow(line, (), f"is not valid CSV: {_said(e)}")
                continue
            if not any(field.strip() for field in fields):
                yield CsvRow(line, ())
            elif (n := len(fields)) != len(self.header):
                remedy = f"quote those with a {self.delimiter!r}" if n > len(self.header) else "write empty ones, too"
                yield CsvRow(line, fields, f"has {counted(n, 'field')}, the header {len(self.header)}: {remedy}")
            else:
                yield CsvRow(line, fields)


def _said(error: csv.Error) -> str:
    """What is wrong, and what to do."""
    what = printable(str(error))
    if "field limit" in what:
        return (
            f"a field has more than {csv.field_size_limit()} characters: shorten it, or close the quotes that begin it"
        )
    if "unexpected end" in what:
        return "the file ends within a quoted field: close its quotes, and double those that are part of it"
    if "new-line character" in what:
        return "a carriage return stands within a field: put the field in quotes"
    return f"{what}: double the quotes that are part of a quoted field"


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
        if "new-line character" in str(e):
            raise ConfigError(
                "the first line has carriage returns in it, with which old programs end lines: save the file with "
                "other line ends, or put the field in quotes"
            ) from None
        if "unexpected end" in str(e):
            raise ConfigError(
                "the first line ends within a quoted name of a column: write the names on one line, with closed quotes"
            ) from None
        raise ConfigError(f"the header is not valid CSV: {_said(e)}") from None
