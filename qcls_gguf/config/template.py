"""The slots of a prompt template: the query's, which every request fills, and that of the list of labels."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ConfigError

SLOT = "{query}"
LABELS_SLOT = "{labels}"
_SEPARATOR = ", "


def expand_labels(template: str, labels: Sequence[str]) -> str:
    """The template with its labels in place of `{labels}`, joined by ", " in the order given."""
    return template.replace(LABELS_SLOT, _SEPARATOR.join(labels))


def check_template(template: str, labels: Sequence[str], where: str) -> None:
    """Refuse a template that has not one `{query}`, before and after its labels are put in. Raises ConfigError."""
    if (n_slots := template.count(SLOT)) != 1:
        raise ConfigError(f"{where}.prompt_template: has {n_slots} {SLOT} slots: it needs exactly one")
    if (n_slots := template.count(LABELS_SLOT)) > 1:
        raise ConfigError(f"{where}.prompt_template: has {n_slots} {LABELS_SLOT} slots: it may have one")
    expanded = expand_labels(template, labels)
    for slot, n_wanted in ((SLOT, 1), (LABELS_SLOT, 0)):
        if expanded.count(slot) != n_wanted:
            label = next((label for label in labels if slot in label), labels[0])
            raise ConfigError(
                f"{where}.labels: {label!r} in place of the template's {LABELS_SLOT} makes another {slot} slot: "
                "change the label, or write the list of labels into the template without that text"
            )
