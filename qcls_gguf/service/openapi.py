"""The OpenAPI description of the routes, as JSON and as a page of its own, which loads nothing from anywhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from ..config.words import JsonObject
from ..version import __version__
from .refusal import ErrorAnswer

Schema = JsonObject
Models = Sequence[type[BaseModel]]
_REFERENCE = "#/components/schemas/{model}"
_LINK = re.compile(r'"#/components/schemas/([^"]+)"')
_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A method of a path, for the description."""

    path: str
    method: str
    summary: str
    answer: Models
    """what an answer is one of; empty: anything of its kind"""
    errors: Sequence[int] = ()
    error: Models = (ErrorAnswer,)
    """what an error's body is one of; empty: any JSON"""
    kind: str = "application/json"
    """of the answer"""
    requests: Models = ()
    """what a body is one of; empty: none is wanted"""
    more_kinds: Sequence[str] = ()
    """that a body may have beside JSON"""
    parameters: Sequence[str] = ()
    """of the query string, which are texts and optional"""


def description(operations: Iterable[Operation]) -> Schema:
    """The OpenAPI description of these operations."""
    operations = list(operations)
    given = {(model, "validation") for each in operations for model in each.requests}
    given |= {(model, "serialization") for each in operations for model in (*each.answer, *each.error)}
    references, schemas = models_json_schema(
        sorted(given, key=lambda each: each[0].__name__),  # type: ignore[arg-type]
        ref_template=_REFERENCE,
    )
    paths: Schema = {}
    for each in operations:
        parameters = [
            {"name": name, "in": where, "required": where == "path", "schema": {"type": "string"}}
            for where, names in (("path", _names_in(each.path)), ("query", each.parameters))
            for name in names
        ]
        operation: Schema = {"summary": each.summary, "responses": _responses(each, references)}
        if parameters:
            operation["parameters"] = parameters
        if each.requests:
            body = {"application/json": {"schema": _one_of(each.requests, "validation", references)}}
            body |= {kind: {"schema": {"type": "string"}} for kind in each.more_kinds}
            operation["requestBody"] = {"required": True, "content": body}
        paths.setdefault(each.path, {})[each.method] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "qcls-gguf",
            "description": "Labels texts with a GGUF language model.",
            "version": __version__,
        },
        "paths": paths,
        "components": {"schemas": schemas["$defs"], "securitySchemes": _KEYS},
    }


def _names_in(path: str) -> list[str]:
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]


def _one_of(models: Models, mode: str, references: Mapping[Any, Schema]) -> Schema:
    schemas = [references[model, mode] for model in models]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas} if schemas else {}


def _responses(operation: Operation, references: Mapping[Any, Schema]) -> Schema:
    answer = {operation.kind: {"schema": _one_of(operation.answer, "serialization", references)}}
    error = {"application/json": {"schema": _one_of(operation.error, "serialization", references)}}
    refused = {"description": "refused", "content": error}
    return {"200": {"description": "answered", "content": answer}} | dict.fromkeys(map(str, operation.errors), refused)


# --- the page --------------------------------------------------------------------------------------------------------

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 60em; padding: 0 1em; }
@media (prefers-color-scheme: dark) { body { background: #16181c; color: #dde; } a { color: #8be; } }
code, pre { font: 13px/1.4 ui-monospace, monospace; } h2 code { font-size: 1em; } summary { cursor: pointer; }
"""


def description_page(schema: Schema) -> bytes:
    """The page of an OpenAPI description: each route with its bodies and answers, then each schema."""
    title = escape(f"{schema['info']['title']} {schema['info']['version']}")
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>',
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style><h1>{title}</h1>',
        f'<p>{escape(schema["info"]["description"])} <a href="openapi.json">openapi.json</a></p>',
    ]
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            parts += [f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(operation['summary'])}</p>"]
            parts.append(f"<details><summary>bodies and answers</summary>{_json(operation)}</details>")
    parts.append("<h1>Schemas</h1>")
    for name, each in sorted(schema["components"]["schemas"].items()):
        parts.append(f'<h3 id="{escape(name)}">{escape(name)}</h3>{_json(each)}')
    return "\n".join(parts).encode()


def _json(value: Schema) -> str:
    """A part of the description as JSON, whose references are links."""
    text = escape(json.dumps(value, indent=2, ensure_ascii=False), quote=False)
    linked = _LINK.sub(r'<a href="#\1">\1</a>', text)
    return f"<pre>{linked}</pre>"
