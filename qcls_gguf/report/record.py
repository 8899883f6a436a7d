"""What the records of all commands have in common: frozen typed values, written as JSON, described by a page of
Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
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


def records_markdown(records: Mapping[str, type[BaseModel]]) -> str:
    """A section for each record by its heading, with a table of its fields, and one for each type that it has first."""
    lines: list[str] = []
    seen: set[str] = set()

    def describe(heading: str, schema: JsonObject, types: Mapping[str, JsonObject]) -> None:
        lines.extend([heading, "", *_table(schema, types)])
        for name in _references(schema):
            if name not in seen:
                seen.add(name)
                describe(f"### {name}", types[name], types)

    for heading, record in records.items():
        schema = record.model_json_schema(schema_generator=_WrittenSchema)
        describe_settings(schema.get("$defs", {}))
        describe(f"## {heading}", schema, schema.pop("$defs", {}))
    return "\n".join(lines)


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if "$ref" in part:
            yield part["$ref"].rpartition("/")[2]
        for value in part.values():
            yield from _references(value)
    elif isinstance(part, list):
        for value in part:
            yield from _references(value)


def _table(schema: JsonObject, types: Mapping[str, JsonObject]) -> list[str]:
    """A type's description and its fields, a row each; a field without a description has that of its type."""
    lines = [_one_line(schema["description"]), "", "| field | type | meaning |", "| --- | --- | --- |"]
    for name, field in schema["properties"].items():
        described = [field, *(types[reference] for reference in _references(field))]
        meaning = _one_line(next((each["description"] for each in described if "description" in each), ""))
        kind = _type_text(field)
        if field.get(_LEFT_OUT):
            kind, meaning = kind.removesuffix(" or null"), f"{meaning}; left out where there is none"
        text = meaning.replace("|", "\\|")
        lines.append(f"| `{name}` | {kind} | {text} |")
    return [*lines, ""]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _type_text(field: JsonObject) -> str:
    """A type in words: `list of number`, `object of number` for any keys, `[number, number]` for a pair."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in field:
        return " or ".join(map(_type_text, field["anyOf"]))
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    kind = str(field["type"])
    if kind == "array":
        if "prefixItems" in field:
            return f"[{', '.join(map(_type_text, field['prefixItems']))}]"
        return f"list of {_type_text(field['items'])}"
    if kind == "object":
        return f"object of {_type_text(field['additionalProperties'])}"
    return kind
