"""Rules for single settings: each checks a value, explains what is wrong, and has a JSON Schema."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import AfterValidator, BeforeValidator, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from .settings import refusal
from .words import JsonObject, kind_of, shown

LARGEST = (1 << 24) - 1
"""no count or size is larger"""
LONGEST = 1 << 20
"""characters that a text may have; a whole file may have no more bytes"""

OWN_VARIABLES = ("messages", "add_generation_prompt", "bos_token", "eos_token")
"""what a chat template gets from the program"""


class Rule:
    """The check of a value in place of pydantic's own for its type, which has other words."""

    def check(self, value: Any, info: core_schema.ValidationInfo) -> Any:
        """The value as it is kept; raises `refusal`."""
        raise NotImplementedError

    def json_schema(self) -> JsonObject:
        """The values that a file may give."""
        raise NotImplementedError

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """For pydantic."""
        return core_schema.with_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonObject:
        """For pydantic."""
        return self.json_schema()


@dataclass(frozen=True, slots=True)
class Text(Rule):
    """A text of valid Unicode."""

    empty: bool = True
    """whether it may be empty"""
    blank: bool = True
    """whether it may be of spaces only"""
    remedy: str = "give it a text or remove it"
    """for a text that is empty or blank"""
    is_path: bool = False
    """whether it may have bytes that are no UTF-8, which Python reads as surrogates"""

    def check(self, value: Any, info: core_schema.ValidationInfo) -> str:
        if not isinstance(value, str):
            raise refusal(_no_text(value))
        if len(value) > LONGEST:
            raise refusal(f"{shown(value)} has {len(value)} characters, at most {LONGEST} are allowed")
        try:
            value.encode(errors="surrogateescape" if self.is_path else "strict")
        except UnicodeEncodeError as e:
            raise refusal(f"{shown(value)} is not valid Unicode: {e.reason}") from None
        if (not self.empty and not value) or (not self.blank and not value.strip()):
            raise refusal(f"is empty: {self.remedy}")
        return value

    def json_schema(self) -> JsonObject:
        limits: JsonObject = {"type": "string"}
        if not self.empty:
            limits["minLength"] = 1
        if not self.blank:
            limits["pattern"] = r"\S"
        return limits


@dataclass(frozen=True, slots=True)
class File(Rule):
    """A path; a relative one resolves from the folder of the configuration, or from the working folder."""

    def check(self, value: Any, info: core_schema.ValidationInfo) -> Path:
        text = Text(empty=False, is_path=True).check(str(value) if isinstance(value, Path) else value, info)
        if "\0" in text:
            raise refusal(f"{shown(text)} has a null byte, which no path has")
        folder: Path = (info.context or {}).get("folder", Path())
        try:
            path = folder / Path(text).expanduser()
            # The last name is not resolved: links in the hub's cache lead to files whose names are digests.
            return path.parent.resolve() / path.name
        except (OSError, RuntimeError, ValueError) as e:  # such as a home folder that nobody has
            raise refusal(f"{shown(text, quoted=False)}: {e}") from None

    def json_schema(self) -> JsonObject:
        return {"type": "string", "minLength": 1}


@dataclass(frozen=True, slots=True)
class Whole(Rule):
    """A whole number of a range, or one of some words."""

    low: int
    high: int = LARGEST
    words: tuple[str, ...] = ()

    def check(self, value: Any, info: core_schema.ValidationInfo) -> int | str:
        if (type(value) is int and self.low <= value <= self.high) or (isinstance(value, str) and value in self.words):
            return value
        choices = "".join(f" or {word}" for word in self.words)
        raise refusal(f"{shown(value)} is not a whole number from {self.low} to {self.high}{choices}")

    def json_schema(self) -> JsonObject:
        number = {"type": "integer", "minimum": self.low, "maximum": self.high}
        return {"anyOf": [number, {"enum": list(self.words)}]} if self.words else number


@dataclass(frozen=True, slots=True)
class Number(Rule):
    """A number of a range, its ends included."""

    low: float
    high: float
    above: bool = False
    """without the lower end"""

    def check(self, value: Any, info: core_schema.ValidationInfo) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.low <= value <= self.high:
            raise refusal(f"{shown(value)} is not a number from {self.low:g} to {self.high:g}")
        if self.above and value == self.low:
            raise refusal(
                f"{shown(value)} has no effect, because no probability is below it: give a number above "
                f"{self.low:g}, up to {self.high:g}"
            )
        return float(value)

    def json_schema(self) -> JsonObject:
        return {"type": "number", "exclusiveMinimum" if self.above else "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True, slots=True)
class Truth(Rule):
    """True or false, or one of some words."""

    words: tuple[str, ...] = ()

    def check(self, value: Any, info: core_schema.ValidationInfo) -> bool | str:
        if isinstance(value, bool) or (isinstance(value, str) and value in self.words):
            return value
        raise refusal(f"{shown(value)} is not {''.join(f'{word}, ' for word in self.words)}true or false")

    def json_schema(self) -> JsonObject:
        return {"anyOf": [{"type": "boolean"}, {"enum": list(self.words)}]} if self.words else {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Variables(Rule):
    """Names with texts, numbers and truth values, for a chat template."""

    def check(self, value: Any, info: core_schema.ValidationInfo) -> JsonObject:
        if not isinstance(value, dict):
            raise refusal(f"expected names and values, got {kind_of(value)}")
        for name, found in value.items():
            text = shown(name, quoted=False)
            if not isinstance(name, str) or not name.isidentifier():
                raise refusal("is no name that a template can ask for: use letters, digits and _", text)
            if name in OWN_VARIABLES:
                raise refusal("is set by the program: leave it out", text)
            if not isinstance(found, str | int | float):
                raise refusal(f"{shown(found)} is {kind_of(found)}: give a text, a number, true or false", text)
            if isinstance(found, str):
                Text().check(found, info)
        return dict(value)

    def json_schema(self) -> JsonObject:
        kinds = {"anyOf": [{"type": kind} for kind in ("string", "number", "boolean")]}
        return {"type": "object", "additionalProperties": kinds, "propertyNames": {"pattern": r"^\w+$"}}


def at_least(n: int, what: str) -> BeforeValidator:
    """That a value is a list of n items or more; what: such as `at least two labels`."""

    def check(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or len(value) < n:
            commas = " with commas: write [one, two]" if isinstance(value, str) and "," in value else ""
            raise refusal(f"expected a list of {what}, got {size_of(value)}{commas}")
        return tuple(value)

    return BeforeValidator(check)


def at_most(n: int, what: str) -> AfterValidator:
    """That a list has no more than n items."""

    def check(value: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(value) > n:
            raise refusal(f"has {len(value)} {what}, at most {n} are allowed")
        return value

    return AfterValidator(check)


def distinct(what: str, key: Callable[[Any], str] = str) -> AfterValidator:
    """That no item of a list is given twice; key: the text that makes an item another."""

    def check(value: tuple[Any, ...]) -> tuple[Any, ...]:
        seen = set()
        for index, text in enumerate(map(key, value)):
            if text in seen:
                raise refusal(f"{what} {shown(text)} is given twice", index)
            seen.add(text)
        return value

    return AfterValidator(check)


def _no_text(value: Any) -> str:
    """The message for a value that is not text; mostly words that YAML reads as another type."""
    if isinstance(value, bool):
        words = "yes, on and true" if value else "no, off and false"
        return f"{value} is a truth value, as YAML reads {words}: write it in quotes"
    if value is None:
        return "is nothing, which YAML makes of null, ~ and an empty place: write a text, the word null in quotes"
    remedy = "write it in quotes"
    if isinstance(value, list | dict):
        remedy = "write one text" if isinstance(value, list) else "write a text with a colon in quotes"
    return f"{shown(value)} is {kind_of(value)}, not text: {remedy}"


def size_of(value: Any) -> str:
    """What a value is, of a list how long."""
    if not isinstance(value, list | tuple):
        return kind_of(value)
    return f"a list of {len(value)}" if value else "an empty list"
