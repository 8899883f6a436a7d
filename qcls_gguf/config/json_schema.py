"""The JSON Schema of a configuration file, from the types and docstrings of schema.py and load.py."""

from __future__ import annotations

import ast
import inspect
import textwrap
from itertools import pairwise
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from .cascade import CascadeConfig, CascadeStage, StagePrompt
from .load import ConfigFile, Shared
from .prompt import PromptConfig
from .schema import Config, ModelConfig, RuntimeConfig


class _Schema(GenerateJsonSchema):
    """Without titles, which only repeat the keys."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """For pydantic."""
        return False


def config_json_schema() -> dict[str, Any]:
    """The schema, with the description and the limits of every key."""
    schema: dict[str, Any] = TypeAdapter(ConfigFile).json_schema(schema_generator=_Schema)
    _describe(schema, ConfigFile, Shared)
    describe_settings(schema["$defs"])
    return {"$schema": _Schema.schema_dialect, **schema}


def describe_settings(definitions: dict[str, Any]) -> None:
    """Give the fields of settings their descriptions, wherever these stand among the definitions of a JSON Schema.

    definitions: schemas by the names of their types. pydantic reads no docstrings of types that are built late.
    """
    for cls in (CascadeConfig, CascadeStage, Config, ModelConfig, PromptConfig, RuntimeConfig, StagePrompt):
        if cls.__name__ in definitions:
            _describe(definitions[cls.__name__], cls)


def _describe(schema: dict[str, Any], *classes: type) -> None:
    """Give keys the docstrings below their fields, which Python itself does not keep; a type has its own."""
    texts = {name: text for cls in classes for name, text in _docstrings(cls).items()}
    for name, key in schema["properties"].items():
        if name in texts:
            key["description"] = texts[name]


def _docstrings(cls: type) -> dict[str, str]:
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairwise(node.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }
