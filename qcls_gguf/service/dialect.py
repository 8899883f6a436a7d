"""Dialects: how an API writes its requests, answers and errors, as functions of plain values.

A dialect reads a body and says what it asks: `Texts` or `Questions`. These carry the function that turns the model's
answers into the answer's body. It knows no engine and no queue.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, Field

from ..config.schema import LongQueries
from ..questions.asking import Usage
from ..questions.question import TextQuestion
from .exchange import Exchange
from .refusal import RefusedError, openai_words

MODEL = "default"
"""what the models of `/v1/models` are named for: all configured prompts; one of them is `default/<prompt>`"""
_Truncate: TypeAlias = bool | Literal["auto", "disabled", "only_first", "longest_first", "do_not_truncate"] | None


class Strict(BaseModel, extra="forbid", strict=True):
    """A part of a body that has the fields that it names and no others."""


class LongTexts(BaseModel):
    """What a request says about texts that are too long."""

    truncate: _Truncate = Field(default=None, description="whether a part of them is labelled; none: as configured")
    truncation: _Truncate = Field(default=None, description="the same")
    truncation_direction: Literal["left", "right", "Left", "Right"] = Field(default="right", description="the end cut")

    @property
    def long(self) -> LongQueries | None:
        """The same in the words of runtime.long_queries; None: as configured."""
        wanted = self.truncation if self.truncate is None else self.truncate
        if wanted is None:
            return None
        if wanted in (False, "disabled", "do_not_truncate"):
            return "refuse"
        return "tail" if self.truncation_direction in ("left", "Left") else "head"


Answer: TypeAlias = Callable[[list[Any], Usage], object]
"""the answer's body, of the answers to all that is asked, in order, and the tokens that they took"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Texts to label by configured prompts; an answer is a Result, or a RefusedError with is_partial."""

    texts: Sequence[str]
    """at least one, but with is_partial"""
    param: str
    """the field that holds them"""
    answer: Answer
    prompts: tuple[str, ...] | None = None
    """names; None: all"""
    long: LongQueries | None = None
    """what is done with a text that is too long; None: as configured"""
    is_partial: bool = False
    """whether the others are answered where one cannot be"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """Questions to answer; an answer is a Distribution, or None with is_partial where there are no scores."""

    questions: Iterable[TextQuestion]
    """read up to the first one that a limit refuses"""
    answer: Answer
    is_partial: bool = False
    is_stream: bool = False
    """whether the answer is a list of events"""


Inquiry: TypeAlias = Texts | Questions


@dataclass(frozen=True, slots=True)
class Dialect:
    """One API on one path."""

    request: type[BaseModel]
    """the body"""
    ask: Callable[[Any, Exchange], Inquiry]
    """what a request asks. Raises RefusedError"""
    words: Callable[[RefusedError], Mapping[str, object]] = openai_words
    """the body of an error"""


def short_json(value: object) -> str:
    """A value as JSON without spaces; a text as it is. Raises RefusedError (422) for numbers that JSON cannot say."""
    if isinstance(value, str):
        return value
    try:  # orjson takes no whole numbers of more than 64 bits, which a request may have
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError as e:
        raise RefusedError(422, "invalid", f"a number that JSON cannot say: {e}") from None
