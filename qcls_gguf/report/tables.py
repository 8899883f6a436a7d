"""A table as a value, and how a terminal shows it; templates/parts.html shows it on a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import rich.table
from rich.text import Text

from ..config.words import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Cells under the names of their columns; the first n_text columns are text, the others numbers."""

    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    n_text: int = 1
    title: str = ""


def terminal_table(table: Table, *, gap: int = 2, bold: Sequence[bool] = (), end: bool = True) -> rich.table.Table:
    """The table without its title, text to the left and numbers to the right.

    gap: spaces between columns; bold: which rows stand out; end: an empty row behind the last.
    """
    shown = rich.table.Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for index, column in enumerate(table.columns):
        shown.add_column(column, justify="left" if index < table.n_text else "right", overflow="fold")
    for index, row in enumerate(table.rows):
        style = "bold" if index < len(bold) and bold[index] else None
        shown.add_row(*(Text(printable(cell)) for cell in row), style=style)
    if end:
        shown.add_row()
    return shown


def fact_table(facts: Sequence[tuple[str, str]]) -> rich.table.Table:
    """Names and texts, a line each."""
    shown = rich.table.Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    shown.add_column(style="bold", no_wrap=True)
    shown.add_column(overflow="fold")
    for name, text in facts:
        shown.add_row(Text(printable(name)), Text(printable(text)))
    shown.add_row()
    return shown
