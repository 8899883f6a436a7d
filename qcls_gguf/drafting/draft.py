"""New configurations as commented YAML, from prompts and their labels."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent, wrap

from ..config.load import parse_config
from ..config.resources import SCHEMA_LINE
from ..config.words import shown
from ..config.yaml_values import text_block, yaml_text
from ..errors import ConfigError, prefixed
from .models import DraftModel

_SYSTEM = """\
Label {about}. {how}
{labels}"""
_ONE = "Output exactly one label from the list.", "{name}: [{labels}]"
_MANY = "For each attribute output exactly one label from its list.", "{all_labels}"
_USER = "text: {query}"
_CUE = "{name}:"
_COMMENT_CELLS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftPrompt:
    """What is asked of every text: a name and the labels to choose from."""

    name: str
    labels: tuple[str, ...]
    note: str = ""
    """for the reader, such as which labels are rare"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a configuration is made from."""

    prompts: tuple[DraftPrompt, ...]
    model: DraftModel
    about: str = "a text"
    """what is labelled, in words that follow on `Label`"""
    source: str
    """what it was made from, for the reader"""


def draft_text(draft: Draft, folder: Path) -> str:
    """The commented YAML, checked as a configuration in that folder. Raises ConfigError.

    Several prompts have one text and differ in their last words, so that a request shares nearly all of its work. A
    model with a chat template gets system and user texts; one without, the whole text.
    """
    how, labels = _ONE if len(draft.prompts) == 1 else _MANY
    system = _SYSTEM.format(about=draft.about, how=how, labels=labels)
    texts = {"system": text_block(system), "user": _USER, "answer_cue": _CUE}
    if not draft.model.has_chat_template:
        texts = {"prompt_template": text_block(f"{system}\n\n{_USER}\n{_CUE}")}
    what = (
        "What every prompt says: {all_labels} are the names and lists of all prompts, {query} is the text to label."
        if len(draft.prompts) > 1
        else "What the prompt says: {labels} is its list, {query} is the text to label."
    )
    prompts = [
        _with_comment(yaml_text([{"name": prompt.name, "labels": list(prompt.labels)}]), prompt.note, 2)
        for prompt in draft.prompts
    ]
    text = "".join(
        [
            f"{SCHEMA_LINE}# Written by qcls-gguf init from {shown(draft.source, quoted=False)}.\n",
            _with_comment(yaml_text({"model": draft.model.settings}), draft.model.why, 2),
            f"# {what}\n",
            yaml_text(texts),
            "prompts:\n",
            *(indent(prompt, "  ") for prompt in prompts),
        ]
    )
    with prefixed("no configuration can be made of that"):
        parse_config(text, folder=folder)
    return text


def labels_of(options: Sequence[str]) -> tuple[DraftPrompt, ...]:
    """Prompts from texts such as `category=dress,jeans,none`. Raises ConfigError."""
    found = []
    for option in options:
        name, equals, labels = option.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"`labels` {option}: is not NAME=LABEL,LABEL and so on, as in category=dress,jeans,none")
        try:
            row = next(csv.reader([labels], skipinitialspace=True, strict=True), [])
        except csv.Error as e:
            what = "a label with a comma or a line break stands in quotes, as in 'size=S,\"M, L\"'"
            raise ConfigError(f"`labels` {shown(option, quoted=False)}: {e}: {what}") from None
        several = tuple(label.strip() for label in row if label.strip())
        found.append(DraftPrompt(name=name.strip(), labels=several))
    return tuple(found)


def _with_comment(text: str, comment: str, n_indent: int) -> str:
    """The YAML with a comment after its first line."""
    first, rest = text.split("\n", 1)
    lines = [f"{' ' * n_indent}# {line}\n" for line in wrap(comment, _COMMENT_CELLS)]
    return f"{first}\n{''.join(lines)}{rest}"
