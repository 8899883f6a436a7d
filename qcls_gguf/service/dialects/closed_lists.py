"""JSON schemas that allow only closed lists of values: a list, or an object each of whose fields has one."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from ...config.words import shown
from ..refusal import RefusedError

_MOST_STEPS = 10_000
"""references, or alternatives, that are followed for one field"""


class ClosedList(NamedTuple):
    """What a field may be."""

    values: tuple[Any, ...]
    """texts, numbers, truth values, null"""
    description: str = ""

    @property
    def labels(self) -> list[str]:
        """The values as texts."""
        return [value if isinstance(value, str) else json.dumps(value) for value in self.values]


def closed_lists(schema: Any, param: str) -> dict[str, ClosedList]:
    """The closed list of each field of an object; under the empty name, that of a schema without fields.

    Raises RefusedError (400) for a field that may be anything else.
    """
    whole = _resolved(schema, schema, param)
    fields = whole.get("properties")
    if not isinstance(fields, dict):
        return {"": _closed_list(whole, schema, param)}
    if not fields:
        raise _refusal("an object without fields", param)
    return {name: _closed_list(field, schema, f"{param}.{name}") for name, field in fields.items()}


def _closed_list(field: Any, root: Any, param: str) -> ClosedList:
    values = {json.dumps(value): value for value in _values(field, root, param)}
    description = _resolved(field, root, param).get("description", "")
    return ClosedList(tuple(values.values()), description if isinstance(description, str) else "")


def _values(field: Any, root: Any, param: str) -> list[Any]:
    """The values that a schema allows, alternatives one after the other."""
    values: list[Any] = []
    waiting = [field]
    for _ in range(_MOST_STEPS):
        if not waiting:
            return values
        match _resolved(waiting.pop(0), root, param):
            case {"enum": [*some]} if some and not any(isinstance(value, list | dict) for value in some):
                values += some
            case {"const": value} if not isinstance(value, list | dict):
                values.append(value)
            case {"type": "boolean"}:
                values += [True, False]
            case {"type": "null"}:
                values.append(None)
            case {"anyOf": [_, *_] as some} | {"oneOf": [_, *_] as some} | {"allOf": [_] as some}:
                waiting[:0] = some
            case other:
                raise _refusal(shown(other), param)
    raise _refusal("a schema of so many alternatives", param)


def _resolved(field: Any, root: Any, param: str) -> dict[str, Any]:
    """A schema, or what it refers to within the whole one, with what stands beside the reference."""
    for _ in range(_MOST_STEPS):
        if not isinstance(field, dict):
            raise _refusal(shown(field), param)
        if "$ref" not in field:
            return field
        target = root
        for step in str(field["$ref"]).removeprefix("#").split("/")[1:]:
            target = target.get(step) if isinstance(target, dict) else None
        beside = {key: value for key, value in field.items() if key != "$ref"}
        field = target | beside if isinstance(target, dict) else target
    raise _refusal("a reference to itself", param)


def _refusal(what: str, param: str) -> RefusedError:
    message = (
        f"{param}: {what} is not a closed list: this service chooses one of given values and writes no text, so give "
        "`enum`, `const` or `boolean`, or an object of such fields"
    )
    return RefusedError(400, "open answer", message, param=param)
