"""Questions about a text, and their answers."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ..config.prompt import PromptConfig
from ..config.schema import LongQueries
from ..config.words import listed
from ..errors import ConfigError

Kind = Literal["choice", "predicate", "score"]


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
    name: str = ""
    """what the request calls it, where its prompt shows that"""
    beside: "tuple[Question, ...]" = ()
    """all questions of the request, where its prompt shows them"""

    @classmethod
    def predicate(cls, instructions: str, yes: str | None = None, no: str | None = None) -> "Question":
        """A yes-or-no question. yes, no: the descriptions of these answers."""
        return cls.of("predicate", instructions, (("yes", yes), ("no", no)))

    @classmethod
    def of(cls, kind: Kind, instructions: str, options: Iterable[tuple[str, str | None]]) -> "Question":
        """A question with options or ordered levels: labels with their descriptions."""
        return cls(kind=kind, instructions=instructions, options=tuple([Option(*o) for o in options]))

    @property
    def prompt_name(self) -> str | None:
        """The name of the configured prompt that the question names by `@` and the name, or None."""
        text = self.instructions
        return text[1:] if text.startswith("@") and len(text) > 1 and not text[1].isspace() else None

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


@dataclass(frozen=True, slots=True)
class Distribution:
    """The probabilities of a question's options, in their order, which add up to 1; and the numbers that APIs want."""

    probabilities: list[float]

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
