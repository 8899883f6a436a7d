"""The end of a command that makes a record: the record is shown, then the files are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import RenderableType

from ..report.document import Document
from ..report.files import Output, show_and_write
from ..report.record import Record
from ..report.results import console
from .options import RecordFormat


def show_record(
    record: Record, format_: RecordFormat, tables: Callable[[], RenderableType], outputs: Sequence[Output] = ()
) -> None:
    """Print a record as JSON or as its tables, then write the files. Raises what `show_and_write` raises."""

    def show() -> None:
        if format_ is RecordFormat.json:
            print(record.to_json())
        else:
            console().print(tables())

    show_and_write(show, outputs)


def show_document(
    record: Record, format_: RecordFormat, document: Document, html: Path | None, outputs: Sequence[Output] = ()
) -> None:
    """Print a record as JSON or as a document, then write the files; html: where the document's page is written."""

    def page() -> str:
        from ..report.html import document_page  # matplotlib is an extra

        return document_page(document)

    pages = [Output(name="--html", path=html, text=page)] if html else []
    show_record(record, format_, lambda: document, [*outputs, *pages])
