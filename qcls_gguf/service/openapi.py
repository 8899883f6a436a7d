"""What the OpenAPI description says of bodies, which the routes read and write themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from ..version import __version__

_REFERENCE = "#/components/schemas/{model}"


class ErrorBody(BaseModel):
    """What is wrong with a request."""

    message: str
    """for people"""
    type: str
    """a class of errors, such as invalid_request_error"""
    param: str | None
    """the field that is wrong, such as `queries[3]`"""
    code: str
    """why, in a word or two, as it is counted in the metrics"""


class ErrorAnswer(BaseModel):
    """Every error has this body, but on paths with another API's words."""

    error: ErrorBody


class TeiError(BaseModel):
    """An error in text-embeddings-inference's words."""

    error: str
    error_type: str


class VllmErrorBody(BaseModel):
    """What is wrong with a request; `code` is the status."""

    message: str
    type: str
    param: str | None
    code: int


class VllmError(BaseModel):
    """An error in vLLM's words."""

    error: VllmErrorBody


class TypeSafeError(BaseModel):
    """An error in TypeSafe's words: a list for 422, else an object."""

    detail: list[dict[str, Any]] | dict[str, Any]


def takes(model: type[BaseModel], *more_types: str) -> dict[str, Any]:
    """For `openapi_extra` of a route: its body."""
    content = {"application/json": {"schema": _reference(model)}}
    for kind in more_types:
        content[kind] = {"schema": {"type": "string"}}
    return {"requestBody": {"required": True, "content": content}}


def gives(
    model: type[BaseModel] | Sequence[type[BaseModel]] | None,
    what: str,
    *errors: int,
    kind: str = "application/json",
    error: type[BaseModel] = ErrorAnswer,
) -> dict[Any, Any]:
    """For `responses` of a route: what it answers with 200, and with errors. model: one of several, or None
    for any body of that kind.
    """
    schema: dict[str, Any] = {}
    if isinstance(model, Sequence):
        schema = {"anyOf": [_reference(each) for each in model]}
    elif model is not None:
        schema = dict(_reference(model))
    found: dict[Any, Any] = {200: {"description": what, "content": {kind: {"schema": schema}}}}
    refused = {"description": "refused", "content": {"application/json": {"schema": _reference(error)}}}
    return found | dict.fromkeys(errors, refused)


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REFERENCE.format(model=model.__name__)}


def describe(app: FastAPI, bodies: Sequence[type[BaseModel]], answers: Sequence[type[BaseModel]]) -> None:
    """Let the application's OpenAPI description have the schemas of these bodies."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(
                title="qcls-gguf",
                version=__version__,
                description="Labels texts with a GGUF language model.",
                routes=app.routes,
            )
            models = [*((model, "validation") for model in bodies), *((model, "serialization") for model in answers)]
            _, found = models_json_schema(models, ref_template=_REFERENCE)  # type: ignore[arg-type]
            schema.setdefault("components", {}).setdefault("schemas", {}).update(found["$defs"])
            schema["components"]["securitySchemes"] = {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            }
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
