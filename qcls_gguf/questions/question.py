"""Questions about a text, and the prompt sets that they become, whatever their texts spell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ..classifier import Classifier
from ..config.prompt import PromptConfig
from ..errors import CapacityError
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

    @classmethod
    def predicate(
        cls, instructions: str, yes: str | None = None, no: str | None = None, *, audit: bool = False
    ) -> Question:
        """Is something so? yes, no: what describes these answers."""
        return cls.of("predicate", instructions, (("yes", yes), ("no", no)), audit=audit)

    @classmethod
    def of(
        cls, kind: Kind, instructions: str, options: Iterable[tuple[str, str | None]], *, audit: bool = False
    ) -> Question:
        """A question with its options, or ordered levels: each a label and what describes it."""
        choices = tuple([Option(*each) for each in options])
        return cls(kind=kind, instructions=instructions, options=choices, audit=audit)

    @property
    def configured(self) -> str | None:
        """The configured prompt that it names, or None."""
        text = self.instructions
        return text[1:] if text.startswith(NAMED) and len(text) > 1 and not text[1:2].isspace() else None

    @property
    def n_bytes(self) -> int:
        """The size of its texts."""
        texts = [self.instructions, *(f"{each.label}{each.description or ''}" for each in self.options)]
        return sum(len(text.encode()) for text in texts)


def compile_question(question: Question, forms: Forms, classifier: Classifier) -> PromptSet:
    """The question as a prompt set, whose texts stay text whatever they spell. Raises ConfigError."""
    instructions = question.instructions.strip() or _USUAL[question.kind]
    lines = "\n".join(
        _line(option) for option in question.options if question.kind != "predicate" or option.description
    )

    model = classifier.engine.model
    quotes = Quotes(model, [instructions, lines])
    text = forms.text(question.kind, quotes.quote(instructions), quotes.quote(lines))
    n_tokens = len(model.tokenize(text.translate(quotes.originals), parse_special=False))
    if n_tokens > (n_most := classifier.engine.n_prefix_cells):
        raise CapacityError(
            f"{PLACE}: has about {n_tokens} tokens, and the cache holds {n_most}: shorten it, or raise "
            "runtime.question_cells"
        )
    prompt = PromptConfig(name=_NAME, prompt_template=text, labels=tuple(each.label for each in question.options))
    compiled = compile_prompts([prompt], QuotingVocabulary(model, quotes.originals), audit=question.audit)
    return without_quotes(compiled, quotes.originals)


def _line(option: Option) -> str:
    return f"- {option.label}" + (f": {' '.join(option.description.split())}" if option.description else "")
