"""How a question becomes a prompt: a system and a user text for its kind, which the model's chat template renders.

A question's texts are not trusted: they stay text even if they spell control tokens or slots. `Quotes.quote` replaces
the first character of such spellings by a character that no text has; `QuotingVocabulary` tokenises the text as if it
had the original characters, but finds special tokens only in the rest of the text.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ..classifier import Classifier
from ..config.prompt import SLOT, PromptConfig
from ..config.schema import ModelConfig
from ..config.words import ALIKE, alike, shown
from ..errors import CapacityError, ConfigError
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
_MOST_LISTED = 50
"""whole numbers in equal steps that are all shown"""
PLACE = f"prompts.{_NAME}"
"""what messages call the prompt of a question"""
INSTRUCTIONS, OPTIONS = "{instructions}", "{options}"
_BRACE = "{"  # which every slot begins with, whatever slots there are
_QUESTIONS: dict[Kind, str] = {
    "choice": f"{INSTRUCTIONS}\nOptions:\n{OPTIONS}\nAnswer with exactly one option.",
    "predicate": f"{INSTRUCTIONS}\n{OPTIONS}\nAnswer with exactly yes or no.",
    "score": f"{INSTRUCTIONS}\nLevels, the lowest first:\n{OPTIONS}\nAnswer with exactly one level.",
}
"""what comes first and is cached; the text that is asked about follows"""
_CUE = "answer:"


def form_of(kind: Kind, model: Model, config: ModelConfig) -> PromptConfig:
    """The whole text around a question of one kind, with its slots. Raises ConfigError where no template renders it.

    A model without a chat template gets the question, the text and the answer's beginning one below the other.
    """
    labels = ("first", "second")  # which no form shows
    if config.chat_template is None and model.chat_template is None:
        whole = f"{_QUESTIONS[kind]}\n\n{SLOT}\n{_CUE}"
        return PromptConfig(name=_NAME, prompt_template=whole, labels=labels)
    prompt = PromptConfig(name=_NAME, system=_QUESTIONS[kind], user=SLOT, answer_cue=_CUE, labels=labels)
    return render_prompts([prompt], model, config).prompts[0]


def compile_question(question: Question, form: PromptConfig, classifier: Classifier) -> PromptSet:
    """The question as a prompt set; texts that spell special tokens stay text. Raises ConfigError."""
    instructions = question.instructions.strip() or _USUAL[question.kind]
    options = [
        f"- {option.label}" + (f": {' '.join(option.description.split())}" if option.description else "")
        for option in question.options
        if question.kind != "predicate" or option.description
    ]
    numbers = [option for option in options if option != "- null"]
    if len(numbers) > _MOST_LISTED and _are_steps(numbers):
        options = [*numbers[:2], "- …", numbers[-1], *["- null"] * (len(options) - len(numbers))]
    lines = "\n".join(options)
    quotes = Quotes(classifier.engine.model, [instructions, lines])
    filled = {INSTRUCTIONS: quotes.quote(instructions), OPTIONS: quotes.quote(lines)}
    text = re.sub("|".join(map(re.escape, filled)), lambda slot: filled[slot[0]], form.template)
    labels = tuple(option.label for option in question.options)
    for other, label in alike(labels, case=True):
        raise ConfigError(f"{PLACE}.labels: {shown(other)} and {shown(label)} {ALIKE}: keep one of them")
    prompt = PromptConfig(name=_NAME, prompt_template=text, labels=labels, label_end=form.label_end)
    return compile_quoted([prompt], quotes, classifier)


def _are_steps(options: Sequence[str]) -> bool:
    """Whether options are whole numbers in equal steps, which the first two and the last say."""
    try:
        numbers = [int(option.removeprefix("- ")) for option in options]
    except ValueError:
        return False
    return len({after - before for before, after in pairwise(numbers)}) == 1


def compile_quoted(
    prompts: Sequence[PromptConfig],
    quotes: "Quotes",
    classifier: Classifier,
    *,
    pointer: Pointer | None = None,
    codes: bool = False,
) -> PromptSet:
    """Prompts with quoted texts in them; pointer, codes: as for `compile_prompts`. Raises ConfigError."""
    model, originals = classifier.engine.model, quotes.originals
    stored = [prompt.template.partition(SLOT)[0].translate(originals) for prompt in prompts]
    n_tokens = max(len(model.tokenize(text, parse_special=False)) for text in stored)
    if n_tokens > (n_most := classifier.engine.n_prefix_cells):
        raise CapacityError(
            f"{PLACE}: has about {n_tokens} tokens, and the cache holds {n_most}: shorten it, or raise "
            "runtime.question_cells"
        )
    quoting = QuotingVocabulary(model, originals)
    compiled = compile_prompts(prompts, model, pointer=pointer, codes=codes, tokenizer=quoting)
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

    def __init__(self, model: Model, originals: Mapping[int, str]) -> None:
        self._model, self._originals = model, originals
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
