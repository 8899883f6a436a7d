"""Documents as HTML pages, each one file that fetches nothing. Needs the extra `report`.

The templates escape whatever they are given; drawings come as `Markup`.
"""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
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
    """The HTML of a document, with its figures drawn."""
    with drawing():
        return page("document.html", document=shown, shown_parts=document.shown_parts, image=_image)


def _image(figure: document.Figure) -> Markup:
    drawn = Figure(figsize=figure.size, layout="constrained")
    figure.draw(drawn.add_subplot())
    return svg_image(drawn, figure.name)


@contextmanager
def drawing() -> Iterator[None]:
    """The look of all drawings. Nothing warns of letters that matplotlib's font lacks, which only measures texts."""
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


def page(template: str, **values: Any) -> str:
    """The page of a template, such as `bench.html`, with its values."""
    environment = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(values)


def svg_image(figure: Figure, name: str) -> Markup:
    """An SVG inside an image, so that the ids of one drawing do not meet those of another."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    source = f"data:image/svg+xml;base64,{base64.b64encode(drawn.getvalue()).decode()}"
    return Markup('<img alt="{}" src="{}">').format(name, source)
