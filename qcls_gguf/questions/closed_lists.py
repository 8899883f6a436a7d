"""JSON schemas that allow only closed lists of values: a list, or an object whose fields all have one.

Every key of a schema is honoured, or says nothing about values (`title`), or is refused by its name.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import ge, gt, le, lt
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote

from ..config.words import shown
from .question import PlaceError

_MOST_STEPS = 50_000
"""values, references and alternatives of one schema; other requests wait while they are read"""
_MOST_LEVELS = 16
"""objects, the inner in the outer"""
_MOST_ALTERNATIVES = 100
"""alternatives in alternatives"""
_MOST_NUMBERS = 255
"""between two bounds"""

_BOUNDS: dict[str, Callable[[Any, Any], bool]] = {
    "minimum": ge,
    "exclusiveMinimum": gt,
    "maximum": le,
    "exclusiveMaximum": lt,
    "multipleOf": lambda number, step: number % step == 0,
}
_KINDS: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: _KINDS["number"](value) and value == int(value),
    "object": lambda _: False,
    "array": lambda _: False,
}
"""which values are of a type"""
_COMMON_KEYS = {
    *("type", "nullable", "allOf", "$ref"),
    # these say nothing about which values are allowed; a default never applies, because every field is answered
    *("title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly"),
    *("$schema", "$id", "$comment", "$defs", "definitions", "components"),
}
_OBJECT_KEYS = _COMMON_KEYS | {"properties", "required", "additionalProperties"}
_VALUE_KEYS = _COMMON_KEYS | {"enum", "const", "anyOf", "oneOf", *_BOUNDS}
_NUMBER_FORMATS = ("int32", "int64")

Names: TypeAlias = tuple[str, ...]
"""the fields that lead to a value, the outermost first"""
_Bound: TypeAlias = tuple[str, Any]
"""one of _BOUNDS, and its number"""
_Parts: TypeAlias = list[dict[str, Any]]
"""schemas, all of which a value has to fit, the outermost first"""
_Values: TypeAlias = dict[tuple[type, Any], str]
"""the descriptions of values, which are told apart by their types, too: True == 1"""


class ClosedList(NamedTuple):
    """What a field may be."""

    values: tuple[Any, ...]
    """texts, numbers, truth values, null"""
    description: str = ""
    of_values: tuple[str, ...] = ()
    """the description of every value; empty for one without"""

    @property
    def options(self) -> list[tuple[str, str | None]]:
        """The label and the description of every value."""
        return [(label, told or None) for label, told in zip(self.labels, self.of_values, strict=True)]

    @property
    def labels(self) -> list[str]:
        """The values as texts."""
        return [value if isinstance(value, str) else json.dumps(value) for value in self.values]


class OpenAnswerError(PlaceError):
    """A field may be anything, not only one of given values."""


def closed_lists(schema: Any, param: str) -> dict[Names, ClosedList]:
    """The closed list of every field of an object and of the objects in it; under no name that of a schema that is one.

    Raises OpenAnswerError for a field that may be anything else, and for a key that is not known.
    """
    return dict(_Reader(schema, param).lists(schema, ()))


def chosen(lists: Mapping[Names, ClosedList], best: Iterable[int]) -> Any:
    """The value that has one value of every list; best: which one."""
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
        self._description = ""
        self._n_steps = self._n_inside = 0

    def lists(self, schema: Any, names: Names) -> Iterator[tuple[Names, ClosedList]]:
        """The fields below a schema, or the schema itself."""
        self._names = names
        parts = self._parts(schema)
        if not any("properties" in part for part in parts):
            self._description = _description(parts)
            values = self._values(parts)
            yield names, ClosedList(tuple([v for _, v in values]), self._description, tuple(values.values()))
            return
        if len(names) == _MOST_LEVELS:
            raise self._open(f"one of more than {_MOST_LEVELS} objects in one another")
        for name, field in self._fields(parts).items():
            yield from self.lists(field, (*names, name))

    def _parts(self, schema: Any) -> _Parts:
        """A schema, what it refers to within the whole one, and the parts of `allOf`."""
        parts: _Parts = []
        waiting = [schema]
        while waiting:
            part = waiting.pop()
            if not isinstance(part, dict):
                raise self._open(shown(part))
            self._step(1 + len(part))
            if parts and part.get("nullable"):  # which widens this part alone
                rest = {key: value for key, value in part.items() if key != "nullable"}
                part = {"anyOf": [rest, {"type": "null"}]}
            parts.append(part)
            waiting += reversed(self._listed(part, "allOf"))
            if "$ref" in part:
                waiting.append(self._at(part["$ref"]))
        return parts

    def _fields(self, parts: _Parts) -> dict[str, Any]:
        """The schemas of an object's fields."""
        self._check_keys(parts, _OBJECT_KEYS)
        fields: dict[str, Any] = {}
        for part in parts:
            if part.get("nullable") or self._kinds({"type": "object", **part}) != ["object"]:
                raise self._open("an object that may be something else, such as null,")
            inner = part.get("properties", {})
            if not isinstance(inner, dict):
                raise self._open(f"`properties` {shown(inner)}")
            for name, field in inner.items():
                fields[name] = {"allOf": [fields[name], field]} if name in fields else field
        for name in [name for part in parts for name in self._listed(part, "required")]:
            if not isinstance(name, str) or name not in fields:
                raise self._open(f"an object that requires {shown(name)}, which has no schema,")
        if not fields:
            raise self._open("an object without fields")
        return fields

    def _values(self, parts: _Parts) -> _Values:
        """The values that fit all parts, in the order of the first list."""
        if any("properties" in part for part in parts):
            raise self._open("an object that may be something else, such as null,")
        self._check_keys(parts, _VALUE_KEYS)
        bounds = [bound for part in parts for bound in self._bounds(part)]
        kinds = [self._kinds(part) for part in parts if part.get("type") is not None]
        lists = [values for part in parts for values in self._lists_of(part)]
        if not lists:
            whole = {key: value for part in reversed(parts) for key, value in part.items()}
            all_of = [value for kind in (kinds or [[""]])[0] for value in self._all_of(kind, bounds, whole)]
            lists = [dict.fromkeys(map(_typed, all_of), "")]
        fitting = {
            key: next((values[key] for values in lists if values.get(key)), "")
            for key in lists[0]
            if all(key in values for values in lists)
            and all(any(_KINDS[kind](key[1]) for kind in names) for names in kinds)
            and (not _KINDS["number"](key[1]) or all(_BOUNDS[name](key[1], bound) for name, bound in bounds))
        }
        if parts[0].get("nullable"):
            fitting.setdefault(_typed(None), "")
        if not fitting:
            raise self._open(f"{shown(parts[0])}, which no value fits,")
        return fitting

    def _lists_of(self, part: dict[str, Any]) -> Iterator[_Values]:
        """The values that a part allows, by its keys that list values."""
        for key in ("enum", "const", "anyOf", "oneOf"):
            if key in part:
                values = [part[key]] if key == "const" else self._listed(part, key)
                is_plain = key in ("enum", "const")
                self._step(len(values))
                if not values or (is_plain and not all(map(_is_plain, values))):
                    raise self._open(shown(part))
                yield dict.fromkeys(map(_typed, values), "") if is_plain else self._any_of(values)

    def _any_of(self, alternatives: list[Any]) -> _Values:
        """The values of alternatives.

        What is said of an alternative is said of its values, but of the field if all others are null. Where nothing is,
        the title of a constant is.
        """
        self._n_inside += 1
        read = [(self._values(parts), _description(parts) or _title(parts)) for parts in map(self._parts, alternatives)]
        self._n_inside -= 1
        n_others = sum(list(values) != [_typed(None)] for values, _ in read)
        union: _Values = {}
        for values, description in read:
            if n_others == 1 and len(values) > 1:
                self._description, description = self._description or description, ""
            for key, told in values.items():
                union[key] = "; ".join(dict.fromkeys(filter(None, (union.get(key), told or description))))
        return union

    def _kinds(self, part: dict[str, Any]) -> list[str]:
        """The types that a part allows."""
        kinds: list[str] = part["type"] if isinstance(part["type"], list) else [part["type"]]
        if wrong := [kind for kind in kinds if kind not in list(_KINDS)]:
            raise self._refused(f"the type {shown(wrong[0])} is not known")
        return kinds

    def _all_of(self, kind: str, bounds: list[_Bound], schema: dict[str, Any]) -> list[Any]:
        """All values of a type within bounds, of which whole numbers may lack some ends. Raises OpenAnswerError."""
        if kind in ("boolean", "null"):
            return [True, False] if kind == "boolean" else [None]
        lows = [bound for key, bound in bounds if key in ("minimum", "exclusiveMinimum")]
        highs = [bound for key, bound in bounds if key in ("maximum", "exclusiveMaximum")]
        if kind != "integer" or not (lows and highs):
            raise self._open(shown(schema))
        step = int(max([1, *(bound for key, bound in bounds if key == "multipleOf")]))
        first, last = math.ceil(max(lows)), math.floor(min(highs))
        numbers = range(first + -first % step, last + 1, step)[: _MOST_NUMBERS + 3]
        self._step(len(numbers))
        fitting = [number for number in numbers if all(_BOUNDS[key](number, bound) for key, bound in bounds)]
        if len(fitting) > _MOST_NUMBERS:
            raise self._open(f"{shown(schema)}, which has more than {_MOST_NUMBERS} values,")
        return fitting

    def _bounds(self, part: dict[str, Any]) -> Iterator[_Bound]:
        """The bounds of numbers in a part."""
        for key in _BOUNDS:
            if (bound := part.get(key)) is not None:
                is_number = _KINDS["number"](bound) and abs(bound) <= 1 << 64
                if not is_number or (key == "multipleOf" and (bound < 1 or bound % 1)):
                    raise self._refused(f"{key} {shown(bound)} is not a number that this can be")
                yield key, int(bound) if key == "multipleOf" else bound

    def _listed(self, part: dict[str, Any], key: str) -> list[Any]:
        """A list in a schema, empty where there is none."""
        values = part.get(key, [])
        if not isinstance(values, list):
            raise self._open(f"`{key}` {shown(values)}")
        return values

    def _check_keys(self, parts: _Parts, known: set[str]) -> None:
        for part in parts:
            for key, value in part.items():
                if key not in known and value is not None and not (key == "format" and value in _NUMBER_FORMATS):
                    raise self._refused(f"the key {shown(key)} of a schema is not supported")

    def _at(self, reference: Any) -> Any:
        """What a JSON pointer leads to; None where it leads nowhere."""
        start, *steps = unquote(reference).split("/") if isinstance(reference, str) else [""]
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
        if self._n_steps > _MOST_STEPS or self._n_inside > _MOST_ALTERNATIVES:
            raise self._open(f"a schema without end, or of more than {_MOST_STEPS:,} values and references,")

    def _open(self, what: str) -> OpenAnswerError:
        return self._refused(f"{what} is not a closed list")

    def _refused(self, what: str) -> OpenAnswerError:
        param = ".".join([self._param, *self._names])[:200]
        message = (
            f"{param}: {what}: this service chooses one of given values and writes no text, so give `enum`, `const` or "
            f"`boolean`, at most {_MOST_NUMBERS} whole numbers by `minimum` and `maximum`, or an object of such fields"
        )
        return OpenAnswerError(message, param)


def _description(parts: _Parts) -> str:
    return next((text for part in parts if isinstance(text := part.get("description"), str) and text), "")


def _title(parts: _Parts) -> str:
    titles = (part["title"] for part in parts if "const" in part and part.get("title") not in (None, part["const"]))
    return next(filter(lambda title: isinstance(title, str), titles), "")


def _is_plain(value: Any) -> bool:
    return math.isfinite(value) if isinstance(value, float) else not isinstance(value, list | dict)


def _typed(value: Any) -> tuple[type, Any]:
    return type(value), value
