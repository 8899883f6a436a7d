"""The slots of a prompt's texts: the query's, which every request fills, and others, which are filled once at start."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from .settings import refusal
from .words import shown

SLOT = "{query}"
LABELS_SLOT = "{labels}"
DESCRIBED_SLOT = "{labels_described}"
NAME_SLOT = "{name}"
DESCRIBE_SLOT = "{describe}"
ALL_LABELS_SLOT = "{all_labels}"
ALL_DESCRIBED_SLOT = "{all_labels_described}"
LABEL_SLOTS = (LABELS_SLOT, DESCRIBED_SLOT)
ALL_SLOTS = (ALL_LABELS_SLOT, ALL_DESCRIBED_SLOT)
"""Those that every prompt of a configuration has a part in."""
SLOTS = (SLOT, *LABEL_SLOTS, NAME_SLOT, DESCRIBE_SLOT, *ALL_SLOTS)
_SEPARATOR = ", "
_BRACED = re.compile(r"\{ ?[A-Za-z_]{1,30} ?\}")
_QUERY_WORDS = ("text", "input", "query", "question", "sentence", "content", "message", "document", "q")
_LABEL_WORDS = ("label", "options", "choices", "classes", "categories", "label_list")


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What a prompt has for its slots."""

    name: str
    labels: Sequence[str]
    descriptions: Sequence[str | None]
    """of each label; none where there is none"""
    describe: str | None

    @property
    def texts(self) -> dict[str, str]:
        """The texts of the slots that depend neither on the query nor on other prompts."""
        return {
            LABELS_SLOT: _SEPARATOR.join(self.labels),
            DESCRIBED_SLOT: self.described,
            NAME_SLOT: self.name,
            DESCRIBE_SLOT: self.describe or "",
        }

    @property
    def described(self) -> str:
        """A line for each label, with its description where it has one."""
        pairs = zip(self.labels, self.descriptions or [None] * len(self.labels), strict=True)
        return "\n".join(f"- {label}: {text}" if text else f"- {label}" for label, text in pairs)

    @property
    def title(self) -> str:
        """The name, with what describes it where that is given."""
        return f"{self.name} ({self.describe})" if self.describe else self.name


def braced_words(text: str) -> list[str]:
    """The words in braces that look like slots and are none, each once."""
    return [word for word in dict.fromkeys(_BRACED.findall(text)) if word not in SLOTS]


def meant_slot(word: str) -> str | None:
    """The slot that a word in braces is likely meant for."""
    bare = word.strip("{} ").lower()
    if bare in _QUERY_WORDS:
        return SLOT
    if bare in _LABEL_WORDS:
        return LABELS_SLOT
    return next(iter(get_close_matches(f"{{{bare}}}", SLOTS, n=1)), None)


def no_query(text: str) -> str:
    """What to do about a text without a slot for the query, after a colon."""
    word = next((word for word in braced_words(text) if meant_slot(word) == SLOT), None)
    return f"did you mean {SLOT} by {word}?" if word else "it needs exactly one"


def expand(template: str, texts: Mapping[str, str]) -> str:
    """The template with slots replaced by their texts; what looks like a slot in such a text stays."""
    return re.sub("|".join(map(re.escape, texts)), lambda slot: texts[slot[0]], template)


def all_texts(prompts: Sequence[Words]) -> dict[str, str]:
    """The texts of the slots that all prompts fill: a line for each, or its name with a line for each label."""
    return {
        ALL_LABELS_SLOT: "\n".join(f"{each.title}: [{_SEPARATOR.join(each.labels)}]" for each in prompts),
        ALL_DESCRIBED_SLOT: "\n".join(f"{each.title}:\n{each.described}" for each in prompts),
    }


def check_texts(texts: Mapping[str, str], words: Words) -> None:
    """Refuse texts that do not have exactly one `{query}`, also after other slots are filled, by the setting to change.

    texts: the texts of a prompt by their keys; the last one should hold the query.
    """
    key, whole = list(texts)[-1], "".join(texts.values())
    has, it = ("has", "it") if len(texts) == 1 else (f"{' and '.join(texts)} have", "a prompt")
    if (n_slots := sum(text.count(SLOT) for text in texts.values())) != 1:
        remedy = no_query(whole) if n_slots == 0 and len(texts) == 1 else f"{it} needs exactly one"
        raise refusal(f"{has} {n_slots} {SLOT} slots: {remedy}", key)
    for slot in LABEL_SLOTS:
        if (n_slots := whole.count(slot)) > 1:
            raise refusal(f"{has} {n_slots} {slot} slots: {it} may have one", key)
    if DESCRIBE_SLOT in whole and words.describe is None:
        what = f"is missing, and {key} has a {DESCRIBE_SLOT} slot for it: give it, or remove the slot"
        raise refusal(what, "describe")
    fillings = words.texts
    expanded = [expand(text, fillings) for text in texts.values()]
    for slot in (SLOT, *fillings):
        if sum(text.count(slot) for text in expanded) != (slot == SLOT):
            made = {"name": [words.name], "describe": [words.describe or ""], "labels": words.labels}
            found = ((name, text) for name, texts_of_it in made.items() for text in texts_of_it if slot in text)
            name, text = next(found, ("labels", words.labels[0]))
            what = f"{shown(text)} in place of the template's {{{name}}} makes another {slot} slot: change it"
            raise refusal(what, name)
