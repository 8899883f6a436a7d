"""The slots of a prompt's texts: the query's, which every request fills, and those that are filled once at start."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .words import shown

SLOT = "{query}"
LABELS_SLOT = "{labels}"
NAME_SLOT = "{name}"
_SEPARATOR = ", "


class WrongTemplate(NamedTuple):
    """What is wrong with a prompt's texts and its labels, and which setting to change."""

    what: str
    key: str


def expand_labels(template: str, labels: Sequence[str]) -> str:
    """The template with its labels in place of `{labels}`, joined by ", " in the order given."""
    return template.replace(LABELS_SLOT, _SEPARATOR.join(labels))


def expand(template: str, *, name: str, labels: Sequence[str]) -> str:
    """The template with everything but the query in its slots. A slot that a label or a name spells stays text."""
    texts = {LABELS_SLOT: _SEPARATOR.join(labels), NAME_SLOT: name}
    return re.sub("|".join(map(re.escape, texts)), lambda slot: texts[slot[0]], template)


def check_texts(texts: Mapping[str, str], *, name: str, labels: Sequence[str]) -> WrongTemplate | None:
    """What is wrong where there is not one `{query}` before and after the other slots are filled; else None.

    texts: those that one prompt is made from, by their keys, the one that should hold the query last.
    """
    key, whole = list(texts)[-1], "".join(texts.values())
    has, it = ("has", "it") if len(texts) == 1 else (f"{' and '.join(texts)} have", "a prompt")
    if (n_slots := sum(text.count(SLOT) for text in texts.values())) != 1:
        return WrongTemplate(f"{has} {n_slots} {SLOT} slots: {it} needs exactly one", key)
    if (n_slots := whole.count(LABELS_SLOT)) > 1:
        return WrongTemplate(f"{has} {n_slots} {LABELS_SLOT} slots: {it} may have one", key)
    expanded = [expand(text, name=name, labels=labels) for text in texts.values()]
    for slot, n_expected in ((SLOT, 1), (LABELS_SLOT, 0), (NAME_SLOT, 0)):
        if sum(text.count(slot) for text in expanded) != n_expected:
            return _another_slot(slot, name, labels)
    return None


def _another_slot(slot: str, name: str, labels: Sequence[str]) -> WrongTemplate:
    if slot in name:
        what = f"{shown(name)} in place of the template's {NAME_SLOT} makes another {slot} slot: change the name"
        return WrongTemplate(what, "name")
    label = next((label for label in labels if slot in label), labels[0])
    return WrongTemplate(
        f"{shown(label)} in place of the template's {LABELS_SLOT} makes another {slot} slot: "
        "change the label, or write the list of labels into the template without that text",
        "labels",
    )
