"""Records described in Markdown, from their JSON Schemas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from ..config.words import JsonObject as Schema
from .record import json_schema


def records_markdown(records: Mapping[str, type[BaseModel]]) -> str:
    """A section for each record by its heading, with a table of the fields of each type; types of several come last."""
    schemas = {heading: json_schema(record) for heading, record in records.items()}
    types: dict[str, Schema] = {}
    used_by: dict[str, set[str]] = {}
    for heading, schema in schemas.items():
        for name, definition in schema.pop("$defs", {}).items():
            types[name] = definition
            used_by.setdefault(name, set()).add(heading)
    lines: list[str] = []
    for heading, schema in schemas.items():
        lines += [f"## {heading}", "", *_table(schema, types)]
        for name in _in_order(schema, types):
            if used_by[name] == {heading}:
                lines += [f"### {name}", "", *_table(types[name], types)]
    lines += ["## Types of several records", ""]
    for name, headings in used_by.items():
        if len(headings) > 1:
            lines += [f"### {name}", "", *_table(types[name], types)]
    return "\n".join(lines)


def _in_order(schema: Schema, types: Mapping[str, Schema]) -> list[str]:
    """The types below a schema in the order in which a reader meets them."""
    names: dict[str, None] = {}

    def visit(part: Schema) -> None:
        for name in _references(part):
            if name not in names:
                names[name] = None
                visit(types[name])

    visit(schema)
    return list(names)


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if "$ref" in part:
            yield part["$ref"].rpartition("/")[2]
        for value in part.values():
            yield from _references(value)
    elif isinstance(part, list):
        for value in part:
            yield from _references(value)


def _table(schema: Schema, types: Mapping[str, Schema]) -> list[str]:
    """A type's description and its fields, a row each; a field without a description has that of its type."""
    required = schema["required"]
    rows = [
        f"| `{name}` | {_type_text(field)} | {_cell(_meaning(field, types), left_out=name not in required)} |"
        for name, field in schema["properties"].items()
    ]
    return [*_sentences(schema.get("description", "")), "| field | type | meaning |", "| --- | --- | --- |", *rows, ""]


def _meaning(field: Schema, types: Mapping[str, Schema]) -> str:
    names = list(_references(field))
    return str(field.get("description") or (types[names[0]].get("description", "") if names else ""))


def _sentences(description: str) -> list[str]:
    return [" ".join(description.split()), ""] if description else []


def _cell(description: str, *, left_out: bool) -> str:
    text = " ".join(description.split()).replace("|", "\\|")
    return "; ".join(part for part in (text, "left out where there is none" if left_out else "") if part)


def _type_text(field: Schema) -> str:
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
