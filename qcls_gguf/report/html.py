"""A document as an HTML page, one file that fetches nothing. Its figures need matplotlib, of the extra `report`."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Iterator, Sequence
from html import escape
from string import Template

from .document import Document, Figure, Paragraph, Part, Section, Table, shown_parts

# Text in figures stays text, so that the reader's fonts show every script; a $ in a label is no formula.
_FIGURES = {"svg.fonttype": "none", "svg.hashsalt": "qcls-gguf", "text.parse_math": False, "font.size": 9}
_PAGE = Template("""\
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root { color-scheme: light; }
body { font: 15px/1.45 system-ui, "Noto Sans CJK SC", sans-serif; margin: 2em auto; max-width: 78em; padding: 0 1em; }
h2 { border-top: 1px solid #ccc; margin-top: 1.6em; padding-top: .8em; }
table { border-collapse: collapse; margin: .6em 0 1.2em; display: block; max-width: 100%; overflow-x: auto; }
th, td { padding: .2em .7em; text-align: right; vertical-align: top; white-space: nowrap; }
td.text, th.text { text-align: left; white-space: normal; overflow-wrap: anywhere; min-width: 5em; }
img { max-width: 100%; height: auto; vertical-align: top; margin: .4em .8em .4em 0; }
.strong { font-weight: bold; }
.warning { background: #fff6dd; padding: .3em .7em; margin: .3em 0; }
.faint { color: #666; }
</style></head><body>
<h1>$title</h1>
$body</body></html>
""")


def document_page(document: Document) -> str:
    """The HTML of a document, with its figures drawn."""
    return _PAGE.substitute(title=escape(document.title), body="".join(_elements(document.parts, 2)))


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
            case Figure():
                yield _image(part)
            case Section():
                yield from _elements(part.parts, level + 1)


def _table(table: Table) -> str:
    classes = [' class="text"' * is_text for is_text in table.is_text()]

    def row(cells: Sequence[str], tag: str, style: str = "") -> str:
        elements = (f"<{tag}{kind}>{escape(cell)}</{tag}>" for cell, kind in zip(cells, classes, strict=True))
        return f"<tr{style}>{''.join(elements)}</tr>\n"

    rows = [row(cells, "td", ' class="strong"' * (n in table.bold)) for n, cells in enumerate(table.cells())]
    return f"<table>\n{row(list(table.columns), 'th') * table.has_header}{''.join(rows)}</table>\n"


def _image(figure: Figure) -> str:
    """An SVG inside an image, so that the ids of one drawing do not meet those of another."""
    import matplotlib
    from matplotlib import figure as drawings

    svg = io.BytesIO()
    with matplotlib.rc_context(_FIGURES), warnings.catch_warnings():  # type: ignore[arg-type]
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # of its font, by which it only measures texts
        drawn = drawings.Figure(figsize=figure.size, layout="constrained")
        figure.draw(drawn.add_subplot())
        drawn.savefig(svg, format="svg", metadata={"Date": None})
    source = base64.b64encode(svg.getvalue()).decode()
    return f'<img alt="{escape(figure.name)}" src="data:image/svg+xml;base64,{source}">\n'
