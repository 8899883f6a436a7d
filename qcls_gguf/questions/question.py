"""Questions about a text, and how they become prompt sets; their texts always stay plain text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..classifier import Classifier
from ..config.prompt import PromptConfig
from ..config.template import SLOT
from ..errors import CapacityError
from ..prompts.pointer import Pointer
from ..prompts.prompt_set import PromptSet, compile_prompts
from .forms import Forms, Kind
from .quoting import Quotes, QuotingVocabulary, without_quotes

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
        """A question with options or ordered levels, each a label and its description."""
        choices = tuple([Option(*each) for each in options])
        return cls(kind=kind, instructions=instructions, options=choices, audit=audit)

    @property
    def configured(self) -> str | None:
        """The name of the configured prompt that the question names, or None."""
        text = self.instructions
        return text[1:] if text.startswith(NAMED) and len(text) > 1 and not text[1:2].isspace() else None

    @property
    def texts(self) -> list[str]:
        """All texts of a request that its prompt contains."""
        own = [self.instructions, self.name, *(f"{each.label}{each.description or ''}" for each in self.options)]
        return [*own, *(text for each in self.beside for text in each.texts)]

    @property
    def n_bytes(self) -> int:
        """The size of its texts."""
        return sum(len(text.encode()) for text in self.texts)


def compile_question(question: Question, forms: Forms, classifier: Classifier) -> PromptSet:
    """The question as a prompt set; texts that spell special tokens stay text. Raises ConfigError."""
    instructions = question.instructions.strip() or _USUAL[question.kind]
    lines = "\n".join(
        _line(option) for option in question.options if question.kind != "predicate" or option.description
    )
    quotes = Quotes(classifier.engine.model, [instructions, lines])
    text = forms.text(question.kind, quotes.quote(instructions), quotes.quote(lines))
    prompt = PromptConfig(name=_NAME, prompt_template=text, labels=tuple(each.label for each in question.options))
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

    audit, pointer: as for `compile_prompts`; as_written: without the token that the model wants at every beginning.
    """
    model, originals = classifier.engine.model, quotes.originals
    stored = [each.template.partition(SLOT)[0].translate(originals) for each in prompts]
    n_tokens = max(len(model.tokenize(text, parse_special=False)) for text in stored)
    if n_tokens > (n_most := classifier.engine.n_prefix_cells):
        raise CapacityError(
            f"{PLACE}: has about {n_tokens} tokens, and the cache holds {n_most}: shorten it, or raise "
            "runtime.question_cells"
        )
    vocabulary = QuotingVocabulary(model, originals, -1 if as_written else model.first_token)
    compiled = compile_prompts(prompts, vocabulary, audit=audit, pointer=pointer)
    return without_quotes(compiled, originals)


def _line(option: Option) -> str:
    return f"- {option.label}" + (f": {' '.join(option.description.split())}" if option.description else "")
