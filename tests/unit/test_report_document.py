"""Documents on a terminal and as pages: what is shown of them, cut, escaped and left out."""

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from qcls_gguf.report.document import TEXT, Document, Facts, Figure, Paragraph, Section, Table
from qcls_gguf.report.html import document_page

TABLE = Table(
    title="Modes",
    columns={"mode": TEXT, "rows": "d", "accuracy (95 %)": "", "macro-F1": ".3f", "log-loss": ".4f", "Brier": ".3f"},
    rows=[
        ["first_token", 6400, "94.6% (94.0%–95.1%)", 0.9123, 0.22261, None],
        ["another with a <long> name\x1b", 6400, "94.6% (94.0%–95.1%)", 0.9123, 0.22261, 0.0812],
    ],
    bold=[1],
    note="Brier: the squared error",
)
EMPTY = Table(columns={"nothing": TEXT}, rows=[])
DOCUMENT = Document(
    title="A report",
    parts=[
        Facts({"model": "tiny"}),
        Section(title="Numbers", parts=[TABLE, None, EMPTY]),
        Section(title="Not measured", parts=[EMPTY]),
        Section(title="More", parts=[Paragraph("a: 1\nb: 2", "code")], folded=True, on_terminal=False),
        Figure("a line", (2, 1), lambda axes: axes.plot([0, 1], [0, 1])),
        Paragraph("a & b", "warning"),
    ],
)


def on_terminal(document: Document, width: int) -> str:
    screen = Console(width=width, file=io.StringIO(), color_system=None)
    screen.print(document)
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


@pytest.mark.parametrize(("width", "n_tables"), [(100, 1), (60, 2), (40, 4), (30, 5)])
def test_numbers_of_a_wide_table_stay_whole_in_several(width: int, n_tables: int) -> None:
    text = on_terminal(Document(title="", parts=[TABLE]), width)
    assert all(cell_len(line.rstrip()) <= width for line in text.splitlines())
    assert text.split().count("mode") == n_tables
    for column, cell in zip(TABLE.columns, TABLE.cells()[0], strict=True):
        assert column in text
        assert cell in text


def test_a_terminal_shows_the_parts_that_have_something_in_them() -> None:
    text = on_terminal(DOCUMENT, 100)
    for shown in ("model  tiny", "Numbers", "0.912", "a & b", "<long> name\\x1b"):
        assert shown in text
    for left_out in ("A report", "Not measured", "nothing", "More", "b: 2", "squared error"):
        assert left_out not in text


def test_a_page_shows_all_of_them_escaped() -> None:
    page = document_page(DOCUMENT)
    for shown in ("<title>A report", "<h2>Numbers", "<h3>Modes", "squared error", "&lt;long&gt; name", "a &amp; b"):
        assert shown in page
    assert '<tr class="strong"><td class="text">another' in page
    assert "<summary>More</summary>\n<pre>a: 1\nb: 2</pre>" in page
    assert '<img alt="a line" src="data:image/svg' in page
    assert page.count("<table>") == 2
    assert "Not measured" not in page
