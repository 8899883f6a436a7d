"""The slots of a prompt template: the query's, which every request fills, and that of the list of labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .words import shown

SLOT = "{query}"
LABELS_SLOT = "{labels}"
_SEPARATOR = ", "


class WrongTemplate(NamedTuple):
    """What is wrong with a template and its labels, and which of the two to change."""

    what: str
    key: str


def expand_labels(template: str, labels: Sequence[str]) -> str:
    """The template with its labels in place of `{labels}`, joined by ", " in the order given."""
    return template.replace(LABELS_SLOT, _SEPARATOR.join(labels))


def check_template(template: str, labels: Sequence[str]) -> WrongTemplate | None:
    """What is wrong where there is not one `{query}` before and after the labels are put in; else None."""
    if (n_slots := template.count(SLOT)) != 1:
        return WrongTemplate(f"has {n_slots} {SLOT} slots: it needs exactly one", "prompt_template")
    if (n_slots := template.count(LABELS_SLOT)) > 1:
        return WrongTemplate(f"has {n_slots} {LABELS_SLOT} slots: it may have one", "prompt_template")
    expanded = expand_labels(template, labels)
    for slot, n_expected in ((SLOT, 1), (LABELS_SLOT, 0)):
        if expanded.count(slot) != n_expected:
            label = next((label for label in labels if slot in label), labels[0])
            return WrongTemplate(
                f"{shown(label)} in place of the template's {LABELS_SLOT} makes another {slot} slot: "
                "change the label, or write the list of labels into the template without that text",
                "labels",
            )
    return None
