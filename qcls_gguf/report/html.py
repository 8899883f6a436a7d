"""Documents as HTML pages, each one file that fetches nothing. Needs the extra `report`.

The template escapes whatever it is given; drawings come as `Markup`.
"""

from __future__ import annotations

import base64
import io
import warnings
from typing import Any

import matplotlib
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from . import document

# Text stays text, so that the reader's fonts show every script; a $ in a label is no formula.
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "qcls-gguf",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 9,
}


def document_page(shown: document.Document) -> str:
    """The HTML of a document, with its figures drawn.

    Nothing warns of letters that matplotlib's font lacks: it only measures texts.
    """
    environment = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        return environment.get_template("document.html").render(
            document=shown, shown_parts=document.shown_parts, image=_image
        )


def _image(figure: document.Figure) -> Markup:
    """An SVG inside an image, so that the ids of one drawing do not meet those of another."""
    drawn = Figure(figsize=figure.size, layout="constrained")
    figure.draw(drawn.add_subplot())
    svg = io.BytesIO()
    drawn.savefig(svg, format="svg", metadata={"Date": None})
    source = f"data:image/svg+xml;base64,{base64.b64encode(svg.getvalue()).decode()}"
    return Markup('<img alt="{}" src="{}">').format(figure.name, source)
