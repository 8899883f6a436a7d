"""JSON schemas that allow only closed lists of values: a list, or an object each of whose fields has one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import Any, NamedTuple
from urllib.parse import unquote

from ..config.words import shown
from .question import PlaceError

_MOST_STEPS = 100_000
"""values, references and alternatives of one schema; other requests wait while they are read"""
_MOST_LEVELS = 16
"""objects within each other"""
_LONGEST_PARAM = 200
"""characters of a place in a message"""

Names = tuple[str, ...]
"""the fields that lead to a value, the outermost first"""


class ClosedList(NamedTuple):
    """What a field may be."""

    values: tuple[Any, ...]
    """texts, numbers, truth values, null"""
    description: str = ""

    @property
    def labels(self) -> list[str]:
        """The values as texts."""
        return [value if isinstance(value, str) else json.dumps(value) for value in self.values]


class OpenAnswerError(PlaceError):
    """A field may be anything, not only one of given values."""


def closed_lists(schema: Any, param: str) -> dict[Names, ClosedList]:
    """The closed list of each field of an object and of the objects in it; under no name that of a schema that is one.

    Raises OpenAnswerError for a field that may be anything else.
    """
    return dict(_Reader(schema, param).lists(schema, ()))


def chosen(lists: Mapping[Names, ClosedList], best: Iterable[int]) -> Any:
    """The value that has one value of each list; best: which one."""
    whole: Any = {}
    for (names, field), index in zip(lists.items(), best, strict=True):
        if not names:  # the schema is itself the only list
            return field.values[index]
        inner = whole
        for name in names[:-1]:
            inner = inner.setdefault(name, {})
        inner[names[-1]] = field.values[index]
    return whole


class _Reader:
    def __init__(self, root: Any, param: str) -> None:
        self._root = root
        self._param = param
        self._names: Names = ()
        self._n_steps = 0

    def lists(self, field: Any, names: Names) -> Iterator[tuple[Names, ClosedList]]:
        """The fields below a schema, or the schema itself."""
        self._names = names
        whole = self._resolved(field)
        fields = whole.get("properties")
        if not isinstance(fields, dict):
            description = whole.get("description")
            yield names, ClosedList(tuple(self._values(whole)), description if isinstance(description, str) else "")
        elif not fields:
            raise self._refusal("an object without fields")
        elif len(names) == _MOST_LEVELS:
            raise self._refusal(f"one of more than {_MOST_LEVELS} objects within each other")
        else:
            for name, each in fields.items():
                yield from self.lists(each, (*names, name))

    def _values(self, field: Any) -> list[Any]:
        """The values that a schema allows, each once, alternatives one after the other."""
        values: list[Any] = []
        waiting = [field]
        while waiting:
            match self._resolved(waiting.pop()):
                case {"enum": [*some]} if some and all(map(_is_value, some)):
                    self._step(len(some))
                    values += some
                case {"const": value} if _is_value(value):
                    values.append(value)
                case {"type": "boolean"}:
                    values += [True, False]
                case {"type": "null"}:
                    values.append(None)
                case {"type": [_, *_] as kinds}:
                    waiting += [{"type": kind} for kind in reversed(kinds)]
                case {"anyOf": [_, *_] as some} | {"oneOf": [_, *_] as some}:
                    self._step(len(some))
                    waiting += reversed(some)
                case other:
                    raise self._refusal(shown(other))
        return list({(type(value), value): value for value in values}.values())  # True == 1

    def _resolved(self, field: Any) -> dict[str, Any]:
        """A schema, or what it refers to within the whole one, with what stands beside the reference."""
        while isinstance(field, dict):
            self._step(1 + len(field))
            match field:
                case {"$ref": str() as reference, **beside}:
                    field = self._at(reference)
                case {"allOf": [one], **beside}:
                    field = one
                case _:
                    return field
            field = field | beside if isinstance(field, dict) else field
        raise self._refusal(shown(field))

    def _at(self, reference: str) -> Any:
        """What a JSON pointer leads to; None where it leads nowhere."""
        start, *steps = unquote(reference).split("/")
        self._step(len(steps))
        value: Any = self._root if start == "#" else None
        for step in steps:
            name = step.replace("~1", "/").replace("~0", "~")
            try:
                value = value[int(name) if isinstance(value, list) else name]
            except (LookupError, TypeError, ValueError):
                return None
        return value

    def _step(self, n: int) -> None:
        self._n_steps += n
        if self._n_steps > _MOST_STEPS:
            raise self._refusal(f"a schema without end, or of more than {_MOST_STEPS:,} values and references,")

    def _refusal(self, what: str) -> OpenAnswerError:
        param = ".".join([self._param, *self._names])[:_LONGEST_PARAM]
        message = (
            f"{param}: {what} is not a closed list: this service chooses one of given values and writes no text, so "
            "give `enum`, `const` or `boolean`, or an object of such fields"
        )
        return OpenAnswerError(message, param)


def _is_value(value: Any) -> bool:
    """Whether it is neither of several values, nor a number too large for JSON."""
    return not isinstance(value, list | dict) and value not in (inf, -inf)
