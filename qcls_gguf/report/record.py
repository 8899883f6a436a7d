"""What the records of all commands have in common: frozen typed values, written as JSON, described by a JSON Schema."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import GenerateJsonSchema

from ..config.load import describe_settings
from ..config.words import JsonObject


def json_text(value: Any, *, indent: int | None = None) -> str:
    """JSON with every script as it is, and bytes of a path that are no UTF-8 as escapes of JSON, such as `\\udcff`.

    Raises ValueError for a number that is not finite, which JSON cannot say.
    """
    text = json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False)
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


class Record(BaseModel):
    """A part of what a command prints as JSON. The docstring below a field is its description.

    A field is always in the JSON, `null` where it has no value, but for those made with `left_out_if_none`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, defer_build=True)

    def to_dict(self) -> JsonObject:
        """The record as JSON has it: objects, lists, strings, numbers, booleans and None."""
        return self.model_dump(mode="json")

    def to_json(self) -> str:
        """The record as indented JSON. Raises ValueError for a number that is not finite."""
        return json_text(self.to_dict(), indent=2)


_LEFT_OUT = "x-left-out"


def left_out_if_none() -> Any:
    """The default of a field that is not in the JSON where it is None."""
    return Field(default=None, exclude_if=lambda value: value is None, json_schema_extra={_LEFT_OUT: True})


class _WrittenSchema(GenerateJsonSchema):
    """Without what a class takes when it is made and does not keep, which is not written."""

    def field_is_present(self, field: Any) -> bool:
        """For pydantic."""
        return super().field_is_present(field) and not field.get("init_only")


def json_schema(record: type[BaseModel]) -> JsonObject:
    """The JSON Schema (draft 2020-12) of what `to_dict` returns: every field is required unless it may be left out."""
    schema = record.model_json_schema(schema_generator=_WrittenSchema)
    describe_settings(schema.get("$defs", {}))
    for part in (schema, *schema.get("$defs", {}).values()):
        if "properties" in part:
            part["required"] = [name for name, field in part["properties"].items() if not _finish(field)]
    return schema


def _finish(field: JsonObject) -> bool:
    """Turn a property for reading, with a default, into one for writing; returns whether it may be left out."""
    field.pop("default", None)
    field.pop("title", None)
    left_out = bool(field.pop(_LEFT_OUT, False))
    if left_out:  # then it is never null
        kinds = [kind for kind in field.pop("anyOf") if kind != {"type": "null"}]
        field.update(kinds[0] if len(kinds) == 1 else {"anyOf": kinds})
    return left_out
