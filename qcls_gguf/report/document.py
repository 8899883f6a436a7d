"""What a command shows, as a value: tables, paragraphs and sections of them.

`console().print(document)` shows it on a terminal, `document_page` as an HTML page, one file that fetches nothing. Both
leave out tables without rows, and sections with nothing in them.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template
from typing import Any, Final, Literal

import rich.table
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from ..config.words import counted, printable
from ..score.result import ModelInfo
from .environment import Environment

NO_VALUE = "–"
"""what a table shows for None"""

Format = str | Callable[[Any], str]
"""a format specification of Python, such as `.1%`, or a function of the value"""

TEXT: Final = "s"
"""the format of columns that stand to the left and are folded where they are long; all others stand to the right"""

_MIN_WIDTH = 100
"""columns where standard output is no terminal"""
_LEAST_TEXT = 16
"""columns of the terminal that a text keeps beside numbers, if it has so many; it is folded then"""
_GAP = 2
"""columns between two columns of a table"""
_STYLES = {"plain": "", "strong": "bold", "faint": "dim", "warning": "yellow"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of values, and how the columns are headed and formatted.

    A value of None is shown as a dash, a string as it is, whatever the column's format.
    """

    columns: Mapping[str, Format]
    """headings with their formats"""
    rows: Sequence[Sequence[object]]
    """the values of all columns, by row"""
    title: str = ""
    note: str = ""
    """explains the columns; only on a page"""
    bold: Collection[int] = ()
    """indices of the rows that stand out"""
    n_terminal: int | None = None
    """the number of rows that a terminal shows, from the first; None: all"""
    has_header: bool = True

    def cells(self) -> list[list[str]]:
        """The rows as text."""

        def cell(value: object, form: Format) -> str:
            if value is None or isinstance(value, str):
                return NO_VALUE if value is None else value
            return form(value) if callable(form) else format(value, "" if form == TEXT else form)

        return [list(map(cell, row, self.columns.values())) for row in self.rows]

    def is_text(self) -> list[bool]:
        """Whether a column stands to the left, by column."""
        return [form == TEXT for form in self.columns.values()]


def facts(texts: Mapping[str, str]) -> Table:
    """A table of texts by their names, a line a fact."""
    return Table(columns={"name": TEXT, "fact": TEXT}, rows=list(texts.items()), has_header=False)


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A text."""

    text: str
    style: Literal["plain", "strong", "faint", "warning"] = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Parts below a title."""

    title: str
    parts: "Sequence[Part | None]"
    """None is left out"""
    on_terminal: bool = True


Part = Table | Paragraph | Section


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """All that a command shows of its record."""

    title: str
    """of the page; a terminal does not show it"""
    parts: Sequence[Part | None]
    """None is left out"""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """For rich."""
        yield from _renderables(self.parts, options.max_width)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to the command, which ends quietly; rich would exit with 1."""
        raise BrokenPipeError


def console() -> Console:
    """Standard output, as wide as the terminal; a file or pipe is wide enough for most tables."""
    made = _Console(highlight=False)
    return made if made.is_terminal else _Console(highlight=False, width=max(_MIN_WIDTH, made.width))


def provenance(model: ModelInfo, environment: Environment) -> dict[str, str]:
    """Facts of the model, the machine and the software, as every page has them."""
    driver = environment.gpu and environment.gpu.driver
    return {
        "model": f"{model.path}: {model.description}",
        "model sha256": model.sha256,
        "device": f"{model.device}, driver {driver or 'none'}, {model.backend}, "
        f"{counted(model.n_gpu_layers, 'layer')} on the GPU",
        "machine": f"{environment.cpu}, {counted(environment.n_cores, 'core')}, "
        f"{counted(environment.n_threads, 'thread')}, {environment.os}",
        "CPU code": " ".join(environment.instruction_sets) or "no special instruction set",
        "versions": f"qcls-gguf {model.package_version}, llama.cpp {model.llama_cpp_commit} patched "
        f"({model.source_digest}), Python {environment.python}",
        "date": environment.date,
    }


def shown_parts(parts: Sequence[Part | None]) -> list[Part]:
    """The parts that have something in them."""

    def has_content(part: Part) -> bool:
        return bool(part.rows if isinstance(part, Table) else not isinstance(part, Section) or shown_parts(part.parts))

    return [part for part in parts if part is not None and has_content(part)]


def _renderables(parts: Sequence[Part | None], width: int) -> Iterator[RenderableType]:
    """The parts as rich shows them on a terminal with so many columns."""
    for part in shown_parts(parts):
        match part:
            case Table():
                if part.title:
                    yield Text(printable(part.title), style="bold")
                yield from _rich_tables(part, width)
                yield Text()
            case Paragraph():
                yield Text(printable(part.text), style=_STYLES[part.style])
            case Section(on_terminal=True):
                yield Text(printable(part.title), style="bold")
                yield from _renderables(part.parts, width)


def _rich_tables(table: Table, width: int) -> Iterator[RenderableType]:
    """The table without its title. Numbers are never cut.

    Where not all columns fit the width, the numbers stand in several tables below one another, with the texts in all.
    """
    headings, is_text = [printable(heading) for heading in table.columns], table.is_text()
    rows = [[printable(cell) for cell in row] for row in table.cells()[: table.n_terminal]]
    widths = [max(map(cell_len, column)) for column in zip(headings, *rows, strict=True)]
    for index, numbers in enumerate(_split(widths, is_text, width)):
        if index:
            yield Text()
        shown = rich.table.Table(
            box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold", show_header=table.has_header
        )
        columns = [column for column in range(len(widths)) if is_text[column] or column in numbers]
        for column in columns:
            is_name = not table.has_header and column == 0
            shown.add_column(
                Text(headings[column]),
                justify="left" if is_text[column] else "right",
                overflow="fold",
                no_wrap=is_name or not is_text[column],
                style="bold" if is_name else None,
            )
        for number, row in enumerate(rows):
            shown.add_row(*(Text(row[column]) for column in columns), style="bold" if number in table.bold else None)
        yield shown


def _split(widths: Sequence[int], is_text: Sequence[bool], width: int) -> list[list[int]]:
    """The indices of the columns of numbers, in as many groups as the width asks for beside the texts."""
    texts = sum(min(n, _LEAST_TEXT) + _GAP for n, text in zip(widths, is_text, strict=True) if text)
    groups: list[list[int]] = [[]]
    left = width - texts
    for index in (index for index, text in enumerate(is_text) if not text):
        if groups[-1] and left < widths[index]:
            groups.append([])
            left = width - texts
        groups[-1].append(index)
        left -= widths[index] + _GAP
    return groups


def percent(value: float | None) -> str:
    """A share in text."""
    return NO_VALUE if value is None else f"{value:.1%}"


def measured(value: float | None) -> str:
    """A measured number with about three digits that mean something."""
    if value is None:
        return NO_VALUE
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"


def document_page(document: Document) -> str:
    """The HTML of a document."""
    page = Template(Path(__file__).with_name("page.html").read_text("utf-8"))
    return page.substitute(title=escape(document.title), body="".join(_elements(document.parts, 2)))


def _elements(parts: Sequence[Part | None], level: int) -> Iterator[str]:
    for part in shown_parts(parts):
        title = getattr(part, "title", "")
        if title:
            yield f"<h{level}>{escape(title)}</h{level}>\n"
        match part:
            case Table():
                yield _table(part)
                yield f'<p class="faint">{escape(part.note)}</p>\n' if part.note else ""
            case Paragraph():
                yield f'<p class="{part.style}">{escape(part.text)}</p>\n'
            case Section():
                yield from _elements(part.parts, level + 1)


def _table(table: Table) -> str:
    classes = [' class="text"' * is_text for is_text in table.is_text()]

    def row(cells: Sequence[str], tag: str, style: str = "") -> str:
        elements = (f"<{tag}{kind}>{escape(cell)}</{tag}>" for cell, kind in zip(cells, classes, strict=True))
        return f"<tr{style}>{''.join(elements)}</tr>\n"

    rows = [row(cells, "td", ' class="strong"' * (n in table.bold)) for n, cells in enumerate(table.cells())]
    return f"<table>\n{row(list(table.columns), 'th') * table.has_header}{''.join(rows)}</table>\n"
