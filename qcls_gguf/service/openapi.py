"""The OpenAPI description of the routes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from ..config.words import JsonObject
from ..version import __version__
from .dialect import Dialect
from .exchange import JSON, LINES
from .refusal import ErrorAnswer, openai_words

_ABOUT = "Labels texts with a GGUF language model."
_REFERENCE = "#/components/schemas/{model}"


def description(spoken: Sequence[Sequence[Dialect]], operations: Iterable[tuple[str, str, str]]) -> JsonObject:
    """The OpenAPI description of the routes.

    spoken: for each path the dialects that are spoken there; operations: method, path and summary of the other routes,
    whose answers are not described.
    """
    dialects = [dialect for group in spoken for dialect in group]
    models: set[tuple[type[BaseModel], JsonSchemaMode]] = {(ErrorAnswer, "serialization")}
    models |= {(each.request, "validation") for each in dialects}
    models |= {(model, "serialization") for each in dialects for model in each.answer}
    references, schemas = models_json_schema(sorted(models, key=lambda each: each[0].__name__), ref_template=_REFERENCE)

    def content(some: Sequence[type[BaseModel]], mode: JsonSchemaMode) -> JsonObject:
        one_of = [references[model, mode] for model in some]
        return {JSON: {"schema": {"anyOf": one_of} if len(one_of) > 1 else one_of[0] if one_of else {}}}

    text = {"type": "string"}
    refused = {"description": "refused", "content": content([ErrorAnswer], "serialization")}
    refused_otherwise = {"description": "refused, in the words of this path's API", "content": {JSON: {"schema": {}}}}
    paths: JsonObject = {}
    for group in spoken:
        own = group[-1]
        body = content([each.request for each in reversed(group)], "validation")
        if own.line is not None:
            body[LINES[0]] = {"schema": text}
        paths[own.path] = {"post": {
            "summary": own.summary,
            "parameters": [{"name": each, "in": "query", "schema": text} for each in own.parameters],
            "requestBody": {"required": True, "content": body},
            "responses": {
                "200": {"description": "answered", "content": content(own.answer, "serialization")},
                "default": refused if own.words is openai_words else refused_otherwise,
            },
        }}  # fmt: skip
    for method, path, summary in operations:
        names = re.findall(r"{(\w+)}", path)
        paths[path] = {method: {
            "summary": summary,
            "parameters": [{"name": each, "in": "path", "required": True, "schema": text} for each in names],
            "responses": {"200": {"description": "answered"}, "default": refused},
        }}  # fmt: skip
    return {
        "openapi": "3.1.0",
        "info": {"title": "qcls-gguf", "description": _ABOUT, "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas["$defs"]},
    }
