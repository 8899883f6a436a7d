"""A table as a value, and how a terminal shows it; templates/parts.html shows it on a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import rich.table
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from ..config.words import printable

_LEAST_TEXT = 16
"""columns that a text keeps beside numbers, if it has so many; it is folded then"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Cells under the names of their columns; the first n_text columns are text, the others numbers."""

    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    n_text: int = 1
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalTable:
    """A table without its title on a terminal: text to the left, numbers to the right and whole.

    Where not all columns fit the width, the numbers stand in several tables below each other, each with the texts.
    """

    table: Table
    gap: int
    """spaces between columns"""
    bold: Sequence[bool]
    """which rows stand out"""
    end: bool
    """an empty row behind the last"""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """For rich."""
        parts = self._parts(options.max_width)
        for part in parts:
            yield self._part(part, last=part is parts[-1])

    def _parts(self, width: int) -> list[list[int]]:
        """The columns of numbers, in as many parts as the width asks for."""
        widths = [
            max(cell_len(printable(text)) for text in (column, *(row[index] for row in self.table.rows)))
            for index, column in enumerate(self.table.columns)
        ]
        n_text = self.table.n_text
        texts = sum(min(each, _LEAST_TEXT) + self.gap for each in widths[:n_text])
        parts: list[list[int]] = [[]]
        room = width - texts
        for index in range(n_text, len(widths)):
            if parts[-1] and room < widths[index]:
                parts.append([])
                room = width - texts
            parts[-1].append(index)
            room -= widths[index] + self.gap
        return parts

    def _part(self, numbers: Sequence[int], *, last: bool) -> rich.table.Table:
        shown = rich.table.Table(box=None, pad_edge=False, padding=(0, self.gap, 0, 0), header_style="bold")
        columns = [*range(self.table.n_text), *numbers]
        for index in columns:
            is_text = index < self.table.n_text
            shown.add_column(
                self.table.columns[index],
                justify="left" if is_text else "right",
                overflow="fold",
                no_wrap=not is_text,
            )
        for index, row in enumerate(self.table.rows):
            style = "bold" if index < len(self.bold) and self.bold[index] else None
            shown.add_row(*(Text(printable(row[column])) for column in columns), style=style)
        if self.end or not last:
            shown.add_row()
        return shown


def terminal_table(table: Table, *, gap: int = 2, bold: Sequence[bool] = (), end: bool = True) -> TerminalTable:
    """The table without its title, as wide as the terminal.

    gap: spaces between columns; bold: which rows stand out; end: an empty row behind the last.
    """
    return TerminalTable(table=table, gap=gap, bold=bold, end=end)


def fact_table(facts: Sequence[tuple[str, str]]) -> rich.table.Table:
    """Names and texts, a line each."""
    shown = rich.table.Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    shown.add_column(style="bold", no_wrap=True)
    shown.add_column(overflow="fold")
    for name, text in facts:
        shown.add_row(Text(printable(name)), Text(printable(text)))
    shown.add_row()
    return shown
