"""Questions about a text, how they become prompt sets, and their answers.

Their texts are not trusted: they stay text even if they spell control tokens or slots. `Quotes.quote` replaces the
first character of such a spelling by a character that no text has; `QuotingVocabulary` tokenises the text as if it
had the original characters, but finds special tokens only in the rest of the text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ..classifier import Classifier
from ..config.prompt import PromptConfig
from ..config.schema import LongQueries
from ..config.template import SLOT
from ..config.words import listed
from ..errors import CapacityError, ConfigError
from ..model import Model
from ..prompts.prompt_set import PromptSet, compile_prompts
from ..prompts.trie import Pointer
from ..score.result import PromptResult
from ..statistics import Int32Array
from .forms import Forms, Kind

_USUAL = {
    "choice": "Which option fits the text best?",
    "predicate": "Is it so?",
    "score": "Which level fits the text best?",
}
_NAME = "question"
PLACE = f"prompts.{_NAME}"
"""what messages call the prompt of a question"""
NAMED = "@"
"""what instructions begin with that name a configured prompt"""
_BRACE = "{"  # which every slot begins with, whatever slots there are
_FIRST = 0xF0000  # characters for private use, of which no script has any
_LAST = 0xFFFFD


class JsonText(str):
    """The JSON text of a value that is not a string, such as a list."""

    __slots__ = ()


def json_value(text: str | None) -> Any:
    """The original value of a request, from its text."""
    return json.loads(text) if isinstance(text, JsonText) else text


class Option(NamedTuple):
    """An answer to choose from."""

    label: str
    """what the model is asked to write, and is scored by"""
    description: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question without its text: equal questions are one prompt."""

    kind: Kind
    instructions: str
    options: tuple[Option, ...]
    audit: bool = False
    """whether its exact scores are wanted"""
    name: str = ""
    """what the request calls it, where its prompt shows that"""
    beside: tuple[Question, ...] = ()
    """all questions of the request, where its prompt shows them"""

    @classmethod
    def predicate(
        cls, instructions: str, yes: str | None = None, no: str | None = None, *, audit: bool = False
    ) -> Question:
        """A yes-or-no question. yes, no: the descriptions of these answers."""
        return cls.of("predicate", instructions, (("yes", yes), ("no", no)), audit=audit)

    @classmethod
    def of(
        cls, kind: Kind, instructions: str, options: Iterable[tuple[str, str | None]], *, audit: bool = False
    ) -> Question:
        """A question with options or ordered levels: labels and their descriptions."""
        choices = tuple([Option(*option) for option in options])
        return cls(kind=kind, instructions=instructions, options=choices, audit=audit)

    @property
    def configured(self) -> str | None:
        """The name of the configured prompt that the question names, or None."""
        text = self.instructions
        return text[1:] if text.startswith(NAMED) and len(text) > 1 and not text[1:2].isspace() else None

    @property
    def texts(self) -> list[str]:
        """All texts of a request that its prompt contains."""
        options = [f"{option.label}{option.description or ''}" for option in self.options]
        return [self.instructions, self.name, *options, *(text for other in self.beside for text in other.texts)]

    @property
    def n_bytes(self) -> int:
        """The size of its texts."""
        return sum(len(text.encode()) for text in self.texts)


@dataclass(frozen=True, slots=True)
class TextQuestion:
    """A question, the text that it is asked about, and what the request calls it, such as `questions[3]`."""

    question: Question
    text: str
    param: str
    long: LongQueries | None = None
    """what is done if the text is too long; None: as configured"""


class PlaceError(ConfigError):
    """A part of a request is wrong."""

    def __init__(self, message: str, param: str) -> None:
        """param: what the request calls it."""
        super().__init__(message)
        self.param = param


class UnknownPromptError(PlaceError):
    """A request names a prompt that is not configured."""

    def __init__(self, name: str, known: Mapping[str, PromptConfig], param: str) -> None:
        super().__init__(f"{name[:100]!r} is not a configured prompt: there are {listed(list(known))}", param)


def compile_question(question: Question, forms: Forms, classifier: Classifier) -> PromptSet:
    """The question as a prompt set; texts that spell special tokens stay text. Raises ConfigError."""
    instructions = question.instructions.strip() or _USUAL[question.kind]
    lines = "\n".join(
        _line(option) for option in question.options if question.kind != "predicate" or option.description
    )
    quotes = Quotes(classifier.engine.model, [instructions, lines])
    text = forms.text(question.kind, quotes.quote(instructions), quotes.quote(lines))
    labels, label_end = tuple(option.label for option in question.options), forms.label_ends.get(question.kind)
    prompt = PromptConfig(name=_NAME, prompt_template=text, labels=labels, label_end=label_end)
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
    return without_quotes(compiled, originals)


def _line(option: Option) -> str:
    return f"- {option.label}" + (f": {' '.join(option.description.split())}" if option.description else "")


class Quotes:
    """The stand-ins: characters that replace others in the texts of one prompt."""

    def __init__(self, model: Model, texts: Iterable[str]) -> None:
        """texts: all that will be quoted."""
        self._model = model
        taken = {character for text in texts for character in text}
        self._free = (sign for sign in map(chr, range(_FIRST, _LAST + 1)) if sign not in taken)
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
        tokens = []
        for token in self._model.tokenize(text, parse_special=True).tolist():
            spelt = spelling(self._model, token)
            if spelt and spelt in text:
                before, _, text = text.partition(spelt)
                tokens += [self.tokenize(before, parse_special=False), np.array([token], np.int32)]
        return np.concatenate([*tokens, self.tokenize(text, parse_special=False)])


def without_quotes(prompts: PromptSet, originals: Mapping[int, str]) -> PromptSet:
    """The compiled prompts with the texts that are meant around the query, which is tokenised with them."""
    return replace(
        prompts,
        prompts=tuple(
            replace(prompt, before=prompt.before.translate(originals), after=prompt.after.translate(originals))
            for prompt in prompts.prompts
        ),
    )


@dataclass(frozen=True, slots=True)
class Distribution:
    """The probabilities of a question's options, in their order, which add up to 1; and the numbers that APIs want."""

    probabilities: list[float]
    answer: PromptResult | None = None
    """what they are of; None where there was nothing to ask"""

    @property
    def label_mass(self) -> float | None:
        """The probability that lies on the options at all; only where the question is audited."""
        return self.answer.audit.label_mass if self.answer and self.answer.audit else None

    @property
    def extra(self) -> dict[str, object]:
        """Fields of an answer that its API does not define: label mass, head."""
        if self.answer is None:
            return {}
        given = {
            "x_label_mass": self.label_mass,
            "x_scored_by": None if self.answer.depth is None else "head",
            "x_depth": self.answer.depth,
        }
        return {name: value for name, value in given.items() if value is not None}

    @property
    def best(self) -> int:
        """The index of the most probable option, the first of equals."""
        return self.probabilities.index(max(self.probabilities))

    @property
    def choice_confidence(self) -> float:
        """(p - 1/n) / (1 - 1/n) for the largest probability p of n options; 1 for a single option."""
        n = len(self.probabilities)
        return 1.0 if n == 1 else min(max((max(self.probabilities) - 1 / n) / (1 - 1 / n), 0.0), 1.0)

    @property
    def expected_level(self) -> float:
        """The expected index of a level, 0 to n - 1."""
        return sum(index * probability for index, probability in enumerate(self.probabilities))

    @property
    def score_confidence(self) -> float:
        """1 minus the mean distance from the most probable level, divided by that of equally probable levels."""
        n = len(self.probabilities)
        if n == 1:
            return 1.0
        distance = sum(probability * abs(index - self.best) for index, probability in enumerate(self.probabilities))
        even = sum(abs(index - (n - 1) / 2) for index in range(n)) / n
        return max(0.0, 1.0 - distance / even)
