"""How a question becomes a prompt: a system and a user text for its kind, which the model's chat template renders.

A question's texts are not trusted: they stay text even if they spell control tokens or slots. `Quotes.quote` replaces
the first character of such spellings by a character that no text has; `QuotingVocabulary` tokenises the text as if it
had the original characters, but finds special tokens only in the rest of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias, get_args

import numpy as np
from pydantic import Field

from ..classifier import Classifier
from ..config.prompt import SLOT, SLOTS, PromptConfig
from ..config.schema import ModelConfig
from ..config.settings import Settings, Text, settings_in_file
from ..config.yaml_values import load_yaml, read_text
from ..errors import CapacityError, ConfigError, prefixed
from ..model import Model
from ..prompts.chat import render_prompts
from ..prompts.prompt_set import PromptSet, compile_prompts
from ..prompts.trie import Pointer
from ..statistics import Int32Array
from .question import Kind, Question

_USUAL = {
    "choice": "Which option fits the text best?",
    "predicate": "Is it so?",
    "score": "Which level fits the text best?",
}
_NAME = "question"
PLACE = f"prompts.{_NAME}"
"""what messages call the prompt of a question"""
INSTRUCTIONS, OPTIONS = "{instructions}", "{options}"
_BRACE = "{"  # which every slot begins with, whatever slots there are
FormTexts: TypeAlias = Mapping[Kind, PromptConfig | ConfigError]
"""a prompt with the whole text of every kind of question, with its slots, or why there is none"""


class Form(Settings):
    """The texts around a question of one kind; `{instructions}`, `{options}` and `{query}` are its slots."""

    system: Text = Field(description="what comes first and is cached: the question")
    user: Text = Field(default=SLOT, description="what changes: the text that it is asked about")
    answer_cue: Text = Field(default="answer:", description="how the answer begins")


class FormSettings(Settings):
    """The forms of all kinds of questions."""

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
        for kind in get_args(Kind):
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


def form_texts(forms: FormSettings, model: Model, config: ModelConfig) -> FormTexts:
    """The forms as whole texts of one model.

    A model without a chat template gets system, user and cue one below the other. If a template cannot render a form,
    its questions raise that error.
    """
    texts: dict[Kind, PromptConfig | ConfigError] = {}
    labels = ("first", "second")  # which no form shows
    for kind in get_args(Kind):
        form: Form = getattr(forms, kind)
        if config.chat_template is None and model.chat_template is None:
            whole = f"{form.system}\n\n{form.user}\n{form.answer_cue}"
            texts[kind] = PromptConfig(name=_NAME, prompt_template=whole, labels=labels)
            continue
        prompt = PromptConfig(name=_NAME, system=form.system, user=form.user, answer_cue=form.answer_cue, labels=labels)
        try:
            texts[kind] = render_prompts([prompt], model, config).prompts[0]
        except ConfigError as e:
            texts[kind] = e
    return texts


def compile_question(question: Question, texts: FormTexts, classifier: Classifier) -> PromptSet:
    """The question as a prompt set; texts that spell special tokens stay text. Raises ConfigError."""
    form = texts[question.kind]
    if isinstance(form, ConfigError):
        raise form
    instructions = question.instructions.strip() or _USUAL[question.kind]
    lines = "\n".join(
        f"- {option.label}" + (f": {' '.join(option.description.split())}" if option.description else "")
        for option in question.options
        if question.kind != "predicate" or option.description
    )
    quotes = Quotes(classifier.engine.model, [instructions, lines])
    filled = {INSTRUCTIONS: quotes.quote(instructions), OPTIONS: quotes.quote(lines)}
    text = re.sub("|".join(map(re.escape, filled)), lambda slot: filled[slot[0]], form.template)
    labels = tuple(option.label for option in question.options)
    prompt = PromptConfig(name=_NAME, prompt_template=text, labels=labels, label_end=form.label_end)
    return compile_quoted([prompt], quotes, classifier, audit=question.audit)


def compile_quoted(
    prompts: Sequence[PromptConfig],
    quotes: Quotes,
    classifier: Classifier,
    *,
    audit: bool,
    pointer: Pointer | None = None,
    as_written: bool = False,
) -> PromptSet:
    """Prompts with quoted texts in them. Raises ConfigError.

    audit, pointer: as for `compile_prompts`; as_written: without the token that the model wants at every beginning, and
    with labels that are codes.
    """
    model, originals = classifier.engine.model, quotes.originals
    stored = [prompt.template.partition(SLOT)[0].translate(originals) for prompt in prompts]
    n_tokens = max(len(model.tokenize(text, parse_special=False)) for text in stored)
    if n_tokens > (n_most := classifier.engine.n_prefix_cells):
        raise CapacityError(
            f"{PLACE}: has about {n_tokens} tokens, and the cache holds {n_most}: shorten it, or raise "
            "runtime.question_cells"
        )
    vocabulary = QuotingVocabulary(model, originals, -1 if as_written else model.first_token)
    compiled = compile_prompts(prompts, vocabulary, audit=audit, pointer=pointer, codes=as_written)
    # with the texts that are meant around the query, which is tokenised with them
    meant = [
        replace(prompt, before=prompt.before.translate(originals), after=prompt.after.translate(originals))
        for prompt in compiled.prompts
    ]
    return replace(compiled, prompts=tuple(meant))


class Quotes:
    """The stand-ins: characters that replace others in the texts of one prompt."""

    def __init__(self, model: Model, texts: Iterable[str]) -> None:
        """texts: all that will be quoted."""
        self._model = model
        taken = {character for text in texts for character in text}
        private = map(chr, range(0xF0000, 0xFFFFE))  # characters for private use, of which no script has any
        self._free = (stand_in for stand_in in private if stand_in not in taken)
        self._by_original: dict[str, str] = {}

    def quote(self, text: str) -> str:
        """The text without spellings of slots or special tokens."""
        if _BRACE in text:
            text = text.replace(_BRACE, self._stand_in(_BRACE))
        while spelt := self._first_special(text):
            text = text.replace(spelt, self._stand_in(spelt[0]) + spelt[1:])
        return text

    def _first_special(self, text: str) -> str | None:
        tokens = self._model.tokenize(text, parse_special=True)
        if np.array_equal(tokens, self._model.tokenize(text, parse_special=False)):
            return None
        spelt = (spelling(self._model, token) for token in tokens.tolist())
        return next((special for special in spelt if special and special in text), None)

    def _stand_in(self, character: str) -> str:
        if character not in self._by_original:
            self._by_original[character] = next(self._free)
        return self._by_original[character]

    @property
    def originals(self) -> Mapping[int, str]:
        """For `str.translate`: the originals of the stand-ins."""
        return {ord(stand_in): original for original, stand_in in self._by_original.items()}


def spelling(model: Model, token: int) -> str:
    """How a special token is spelt; empty for any other."""
    piece, is_special = model.piece(token)
    return piece.decode(errors="ignore") if is_special else ""


class QuotingVocabulary:
    """A model's vocabulary for texts with quotes in them; see compile_prompts."""

    def __init__(self, model: Model, originals: Mapping[int, str], first_token: int) -> None:
        self._model = model
        self._originals = originals
        self.first_token = first_token
        self.has_states = model.has_states
        self.label_end = model.label_end
        self.piece = model.piece

    def tokenize(self, text: str, *, parse_special: bool) -> Int32Array:
        """The model's tokens of the original text; only text without stand-ins becomes special tokens."""
        meant = text.translate(self._originals)
        if meant == text or not parse_special:
            return self._model.tokenize(meant, parse_special=parse_special)
        parts = []
        for token in self._model.tokenize(text, parse_special=True).tolist():
            spelt = spelling(self._model, token)
            if spelt and spelt in text:
                before, _, text = text.partition(spelt)
                parts += [self.tokenize(before, parse_special=False), np.array([token], np.int32)]
        return np.concatenate([*parts, self.tokenize(text, parse_special=False)])
