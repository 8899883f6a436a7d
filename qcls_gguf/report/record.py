"""What the records of all commands have in common: frozen typed values that are written as JSON."""

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from ..config.words import JsonObject


def json_text(value: Any, *, indent: int | None = None) -> str:
    """JSON with every script as it is, and bytes of a path that are no UTF-8 as escapes of JSON, such as `\\udcff`.

    Raises ValueError for a number that is not finite, which JSON cannot say.
    """
    text = json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False)
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


class Record(BaseModel):
    """A part of what a command prints as JSON. Its fields carry their description.

    A field is always in the JSON, `null` where it has no value, but for those made with `left_out_if_none`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    def to_dict(self) -> JsonObject:
        """The record as JSON has it: objects, lists, strings, numbers, booleans and None."""
        return self.model_dump(mode="json")

    def to_json(self) -> str:
        """The record as indented JSON. Raises ValueError for a number that is not finite."""
        return json_text(self.to_dict(), indent=2)


LEFT_OUT = "x-left-out"
"""marks, in a JSON Schema, a field that is left out where it has no value"""


def left_out_if_none(description: str | None = None) -> Any:
    """The default of a field that is not in the JSON where it is None."""
    return Field(
        default=None,
        description=description,
        exclude_if=lambda value: value is None,
        json_schema_extra={LEFT_OUT: True},
    )
