"""A configuration that is still to be written: its prompts and its model, and the commented YAML they become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

import yaml

from ..config.load import parse_config
from ..config.resources import schema_path
from ..config.words import shown
from ..errors import ConfigError
from .model_choice import DraftModel

_SYSTEM = """\
Label {about}. {how}
{labels}"""
_ONE = "Output exactly one label from the list.", "{name}: [{labels}]"
_MANY = "For each attribute output exactly one label from its list.", "{all_labels}"
_USER = "text: {query}"
_COMMENT_CELLS = 100
_CUE = "{name}:"


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
    texts: dict[str, str] = {"system": system, "user": _USER, "answer_cue": _CUE}
    if not draft.model.has_chat_template:
        texts = {"prompt_template": f"{system}\n\n{_USER}\n{_CUE}"}
    parts = [
        heading(draft.source),
        model_part(draft.model),
        "# What every prompt says: {all_labels} are the names and lists of all prompts, {query} is the text to label.\n"
        if len(draft.prompts) > 1
        else "# What the prompt says: {labels} is its list, {query} is the text to label.\n",
        "".join(f"{key}: {_text(value)}\n" for key, value in texts.items()),
        "prompts:\n",
        "".join(_prompt(prompt) for prompt in draft.prompts),
    ]
    return checked("".join(parts), folder)


def heading(source: str) -> str:
    """The first lines: the schema, for editors, and where the file comes from."""
    where = shown(source, quoted=False)
    return f"# yaml-language-server: $schema={schema_path().as_uri()}\n# Written by qcls-gguf init from {where}.\n"


def model_part(model: DraftModel) -> str:
    """The model with what is to be said of it."""
    why = "".join(f"  # {line}\n" for line in wrap(model.why, _COMMENT_CELLS))
    return f"model:\n{why}{mapping(model.settings, indent=2)}"


def checked(text: str, folder: Path) -> str:
    """The same text. Raises ConfigError where it is no configuration."""
    try:
        parse_config(text, folder=folder)
    except ConfigError as e:
        raise ConfigError(f"no configuration can be made of that: {e}") from None
    return text


def mapping(values: Mapping[str, Any], *, indent: int = 0) -> str:
    """Keys and values as YAML, a key a line; texts of several lines as blocks, lists on a line."""
    pad = " " * indent
    return "".join(f"{pad}{key}: {_value(value, indent)}\n" for key, value in values.items())


def flow(value: Any) -> str:
    """A value on one line."""
    dumped = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=float("inf"), sort_keys=False)
    return str(dumped).removesuffix("\n").removesuffix("\n...")


def _value(value: Any, indent: int) -> str:
    return _text(value, indent) if isinstance(value, str) else flow(value)


def _text(text: str, indent: int = 0) -> str:
    """A text, as a block where it has several lines that YAML keeps as they are."""
    lines = text.split("\n")
    if len(lines) == 1 or not all(line.isprintable() for line in lines) or lines[0][:1] in (" ", "") or not lines[-1]:
        return flow(text)
    pad = " " * (indent + 2)
    return "|\n" + "\n".join(f"{pad}{line}" if line else "" for line in lines)


def _prompt(prompt: DraftPrompt) -> str:
    note = f"    # {prompt.note}\n" if prompt.note else ""
    return f"  - name: {flow(prompt.name)}\n{note}    labels: {flow(list(prompt.labels))}\n"


def labels_of(options: Sequence[str]) -> tuple[DraftPrompt, ...]:
    """Prompts from texts such as `category=dress,jeans,none`. Raises ConfigError."""
    found = []
    for option in options:
        name, equals, labels = option.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"`labels` {option}: is not NAME=LABEL,LABEL and so on, as in category=dress,jeans,none")

        several = tuple(label.strip() for label in labels.split(",") if label.strip())
        found.append(DraftPrompt(name=name.strip(), labels=several))
    return tuple(found)
