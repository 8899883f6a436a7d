"""The types of single settings: pydantic's own with limits, and checks of what it has no type for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, ValidationInfo, WithJsonSchema

from .settings import refusal, why_no_text
from .words import JsonObject, kind_of, shown

LARGEST = (1 << 24) - 1
"""no count or size is larger"""
LONGEST = 1 << 20
"""characters that a text may have; a whole file may have no more bytes"""
OWN_VARIABLES = ("messages", "add_generation_prompt", "bos_token", "eos_token")
"""what a chat template gets from the program"""

Text: TypeAlias = Annotated[str, Field(strict=True, max_length=LONGEST)]
FilledText: TypeAlias = Annotated[Text, Field(min_length=1)]
VisibleText: TypeAlias = Annotated[Text, Field(pattern=r"\S")]
"""more than white space"""
Truth: TypeAlias = Annotated[bool, Field(strict=True)]
Size: TypeAlias = Annotated[int, Field(strict=True, ge=0, le=LARGEST)]
Count: TypeAlias = Annotated[int, Field(strict=True, ge=1, le=LARGEST)]
Share: TypeAlias = Annotated[float, Field(strict=True, ge=0, le=1)]


def _resolved(value: Any, info: ValidationInfo) -> Path:
    """A relative path resolves from the folder of the configuration, or from the working folder."""
    if not isinstance(value, str | Path):
        raise refusal(why_no_text(value))
    if not str(value):
        raise refusal("is empty: give it a text or remove it")
    folder: Path = (info.context or {}).get("folder", Path())
    try:
        path = folder / Path(value).expanduser()
        if b"\0" in os.fsencode(path):
            raise ValueError("has a null byte, which no path has")
        # The last name is not resolved: links in the hub's cache lead to files whose names are digests.
        return path.parent.resolve() / path.name
    except (OSError, RuntimeError, ValueError) as e:  # such as the home folder of an unknown user
        raise refusal(f"{shown(str(value), quoted=False)}: {e}") from None


File: TypeAlias = Annotated[Path, PlainValidator(_resolved), WithJsonSchema({"type": "string", "minLength": 1})]


def _checked_variables(value: Any) -> JsonObject:
    if not isinstance(value, dict):
        raise refusal(f"expected names and values, got {kind_of(value)}")
    for name, found in value.items():
        if not isinstance(name, str) or not name.isidentifier() or name in OWN_VARIABLES:
            what = f"is no name for a variable: use letters, digits and _, but not {', '.join(OWN_VARIABLES)}"
            raise refusal(what, shown(name, quoted=False))
        if not isinstance(found, str | int | float):
            raise refusal(f"{shown(found)} is {kind_of(found)}: give a text, a number, true or false", name)
    return value


Variables: TypeAlias = Annotated[dict[str, Text | bool | int | float], BeforeValidator(_checked_variables)]
"""names with texts, numbers and truth values, for a chat template"""


def _listed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return value
    remedy = ""
    if isinstance(value, str | dict):
        remedy = ": begin each item with -" if isinstance(value, dict) else ": write [one, two]"
    raise refusal(f"expected a list, got {kind_of(value)}{remedy}")


LISTED = BeforeValidator(_listed)
"""that a value is a list, whose order counts"""


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
