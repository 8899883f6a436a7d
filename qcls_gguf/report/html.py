"""What the HTML reports are made of: a style, tables, drawings that stand in the page. Needs matplotlib."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from typing import Any

from matplotlib.figure import Figure

# Text stays text, so that the reader's fonts show every script; a $ in a label is no formula.
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "qcls-gguf",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 9,
}

CSS = """
:root { color-scheme: light; }
body { font: 15px/1.45 system-ui, "Noto Sans CJK SC", sans-serif; margin: 2em auto; max-width: 78em; padding: 0 1em; }
h1 { font-size: 1.6em; } h2 { border-top: 1px solid #ccc; margin-top: 1.6em; padding-top: .8em; }
table { border-collapse: collapse; margin: .6em 0 1.2em; }
th, td { padding: .2em .7em; text-align: right; vertical-align: top; border-bottom: 1px solid #eee; }
th { border-bottom: 1px solid #888; white-space: nowrap; }
td.text, th.text { text-align: left; overflow-wrap: anywhere; }
td.text:first-child { overflow-wrap: normal; }
.figures { display: flex; flex-wrap: wrap; gap: 1em; align-items: flex-start; }
img { max-width: 100%; height: auto; }
.note { background: #fff6dd; padding: .3em .7em; margin: .3em 0; }
.faint { color: #666; }
"""


def html_table(columns: Sequence[str], rows: Sequence[Sequence[str]], n_text: int = 1) -> str:
    """A table whose first n_text columns are text, the others numbers."""

    def cells(tag: str, row: Sequence[str]) -> str:
        kinds = (" class=text" if index < n_text else "" for index in range(len(row)))
        return "".join(f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, row, strict=True))

    body = "".join(f"<tr>{cells('td', row)}</tr>\n" for row in rows)
    return f"<table><tr>{cells('th', columns)}</tr>\n{body}</table>\n"


def svg_image(figure: Figure, name: str) -> str:
    """An SVG inside an image, so that the ids of one drawing do not meet those of another."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    return f'<img alt="{escape(name)}" src="data:image/svg+xml;base64,{base64.b64encode(drawn.getvalue()).decode()}">'
