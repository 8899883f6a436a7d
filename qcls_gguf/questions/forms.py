"""How a question becomes a prompt: a system and a user text by its kind, which the model's chat template renders."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import Field

from ..config.prompt import PromptConfig
from ..config.schema import ModelConfig
from ..config.settings import Settings, Text, settings_in_file
from ..config.template import SLOT, SLOTS
from ..config.yaml_values import load_yaml, read_text
from ..errors import ConfigError, prefixed
from ..model import Model
from ..prompts.chat import render_prompts

Kind = Literal["choice", "predicate", "score"]
KINDS: tuple[Kind, ...] = ("choice", "predicate", "score")
INSTRUCTIONS, OPTIONS = "{instructions}", "{options}"


class Form(Settings):
    """The texts around a question of one kind; `{instructions}`, `{options}` and `{query}` are its slots."""

    system: Text = Field(description="what comes first and is cached: the question")
    user: Text = Field(default=SLOT, description="what changes: the text that it is asked about")
    answer_cue: Text = Field(default="answer:", description="how the answer begins")


class FormSettings(Settings):
    """The forms of questions by their kind."""

    choice: Form = Field(
        default_factory=lambda: Form(system=f"{INSTRUCTIONS}\nOptions:\n{OPTIONS}\nAnswer with exactly one option.")
    )
    predicate: Form = Field(
        default_factory=lambda: Form(system=f"{INSTRUCTIONS}\n{OPTIONS}\nAnswer with exactly yes or no.")
    )
    score: Form = Field(
        default_factory=lambda: Form(
            system=f"{INSTRUCTIONS}\nLevels, the lowest first:\n{OPTIONS}\nAnswer with exactly one level."
        )
    )


def read_forms(path: Path) -> FormSettings:
    """Forms from a YAML file: `choice`, `predicate` and `score`; missing kinds have their default.

    Raises ConfigError, with a line for every mistake.
    """
    with prefixed(str(path)):
        forms = settings_in_file(FormSettings, load_yaml(read_text(path, "the forms of questions")))
        for kind in KINDS:
            form: Form = getattr(forms, kind)
            turns = form.system + form.user
            for slot in (INSTRUCTIONS, OPTIONS, SLOT):
                if (n := turns.count(slot)) != 1:
                    raise ConfigError(f"{kind}: has {n} {slot} slots in system and user: it needs one")
            rest = re.sub(SLOT, "", turns) + form.answer_cue
            if other := next((slot for slot in SLOTS if slot in rest), None):
                # else a caller's options would be put there as they are, with the control tokens that they spell
                raise ConfigError(f"{kind}: has a {other} slot where none belongs: write {OPTIONS} for the options")
    return forms


class Forms:
    """The forms as whole texts of one model."""

    def __init__(self, forms: FormSettings, model: Model, config: ModelConfig) -> None:
        """A model without a chat template gets system, user and cue one below the other.

        If a template cannot render a form, its questions raise that error.
        """
        self._texts: dict[Kind, str | ConfigError] = {}
        self.label_ends: dict[Kind, str | None] = {}
        """What ends a label, where the chat template ends answers with another token than the file's."""
        for kind in KINDS:
            try:
                self._texts[kind], self.label_ends[kind] = _whole_text(getattr(forms, kind), model, config)
            except ConfigError as e:
                self._texts[kind] = e

    def text(self, kind: Kind, instructions: str, options: str) -> str:
        """The prompt's text, with `{query}` in it. Raises ConfigError."""
        text = self._texts[kind]
        if isinstance(text, ConfigError):
            raise text
        filled = {INSTRUCTIONS: instructions, OPTIONS: options}
        return re.sub("|".join(map(re.escape, filled)), lambda slot: filled[slot[0]], text)


def _whole_text(form: Form, model: Model, config: ModelConfig) -> tuple[str, str | None]:
    if config.chat_template is None and model.chat_template is None:
        return f"{form.system}\n\n{form.user}\n{form.answer_cue}", None
    labels = ("first", "second")  # which no form shows
    prompt = PromptConfig(
        name="question", system=form.system, user=form.user, answer_cue=form.answer_cue, labels=labels
    )
    rendered = render_prompts([prompt], model, config).prompts[0]
    return rendered.template, rendered.label_end
