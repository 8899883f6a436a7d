"""What is wrong with a body, in words: the place, what is there, and what belongs there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError

from ..config.words import close_to, counted, hint, shown
from .refusal import RefusedError

Step = int | str
_Place = tuple[Step, ...]
_Member = tuple[_Place, _Place, Step]
"""One of the types that a value may be of: pydantic's location of the value, the value's place, the type's name"""

_MOST_MISTAKES = 20
_TAG = "type"  # the field that says which kind an object is
MESSAGE = "message"
"""the kind of an object that does not say its kind, where one may leave it out"""
_WANTED = {
    "string_type": "a text",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}


def refusal_of_mistakes(error: ValidationError, model: type[BaseModel], value: Any) -> RefusedError:
    """The refusal (422) of a value of JSON that is none of the model, with its fields."""
    found: dict[str, list[str]] = {}
    wanted: dict[str, list[str]] = {}
    for each, place in _meant(error, value):
        path = field_path(place)
        kind = each["type"]
        if kind in _WANTED:  # of a field that may be one of several, each is told
            one = wanted.setdefault(path, [])
            one += [] if _WANTED[kind] in one else [_WANTED[kind]]
            found[path] = [f"expected {' or '.join(one)}, got {_got(each['input'])}"]
        elif kind in ("union_tag_invalid", "union_tag_not_found"):
            found.setdefault(f"{path}.{_TAG}", []).append(_no_tag(each))
        else:
            found.setdefault(path, []).append(_what(each, model))
    lines = [f"{path}: {what}" for path, texts in found.items() for what in texts]
    if (n_more := len(lines) - _MOST_MISTAKES) > 0:
        lines[_MOST_MISTAKES:] = [f"and {counted(n_more, 'more mistake')}"]
    return RefusedError(422, "invalid", "; ".join(lines), param=next(iter(found)))


def field_path(where: Sequence[Step]) -> str:
    """A place in a body in words, such as `queries[3]`."""
    path = ""
    for step in where:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else _name(step)
    return path or "the body"


def _name(name: str) -> str:
    return name if name.isprintable() and len(name) <= 100 else repr(name[:100])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Walk:
    """What pydantic's location of a mistake consists of."""

    place: _Place
    """the keys and indices that lead to it"""
    members: tuple[_Member, ...]
    """the types that were tried on the way to it"""
    end: Any
    """the value there, or that in which something is missing"""


def _walk(error: Any, value: Any) -> _Walk:
    """Follow a mistake's location from the whole body on.

    Where an object has no tag, the step of that name is its kind, or a key: whichever leads to what pydantic refused.
    """
    walk = _followed(error, value, MESSAGE)
    return walk if walk.end == error["input"] else _followed(error, value, None)


def _followed(error: Any, value: Any, untagged: str | None) -> _Walk:
    """What leads nowhere is the name of a type, or a tag; untagged: that of objects without one."""
    where = error["loc"]
    place: list[Step] = []
    members: list[_Member] = []
    tagged = None  # the object whose tag was passed
    for index, step in enumerate(where):
        is_last = index == len(where) - 1
        if isinstance(value, dict) and value is not tagged and step == value.get(_TAG, untagged) and not is_last:
            tagged = value
        elif isinstance(value, dict) and (step in value or (is_last and error["type"] == "missing")):
            place.append(step)
            value = value.get(step, value)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            place.append(step)
            value = value[step]
        else:
            members.append((where[:index], tuple(place), step))
    return _Walk(place=tuple(place), members=tuple(members), end=value)


def _meant(error: ValidationError, value: Any) -> list[tuple[Any, _Place]]:
    """The mistakes with their places; where a value may be of several types, those of the type that fits best only."""
    walks = [(each, _walk(each, value)) for each in error.errors(include_url=False)]
    places: dict[tuple[_Place, _Place], dict[Step, set[_Place]]] = {}
    for _, walk in walks:
        for union, start, member in walk.members:
            places.setdefault((union, start), {}).setdefault(member, set()).add(walk.place)
    best: set[_Member] = set()
    for (union, start), tried in places.items():
        fits = {member: _fit(found) for member, found in tried.items()}
        best.update((union, start, member) for member, fit in fits.items() if fit == max(fits.values()))
    return [(each, walk.place) for each, walk in walks if best.issuperset(walk.members)]


def _fit(mistakes: set[_Place]) -> tuple[int, int]:
    """How well a type fits a value, by the places of its mistakes: best if they are far inside of it, then if few."""
    return max(map(len, mistakes)), -len(mistakes)


def _what(error: Any, model: type[BaseModel]) -> str:
    kind, context = error["type"], error.get("ctx", {})
    match kind:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            *where, name = error["loc"]
            return f"unknown field, {hint(name, _known(model, where))}"
        case "too_short":
            n, least = context["actual_length"], context["min_length"]
            return f"has {counted(n, 'item')}, at least {least} {'is' if least == 1 else 'are'} needed"
        case "literal_error" | "enum":
            return f"{shown(error['input'])} is not {context['expected']}"
        case "value_error":
            return str(context["error"])
    return str(error["msg"])


def _no_tag(error: Any) -> str:
    if error["type"] == "union_tag_not_found":
        return "is missing"
    given, known = error["input"][_TAG], error["ctx"]["expected_tags"]
    close = close_to(given, [kind.strip("'") for kind in known.split(", ")])
    said = shown(given) if isinstance(given, str) else _got(given)
    return f"{said} is not one of {known}{f', did you mean {close}?' if close else ''}"


def _got(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "an object"
    return f"{'the text' if isinstance(value, str) else 'the number'} {shown(value)}"


def _known(model: type[BaseModel], where: Sequence[Step]) -> list[str]:
    """The fields that an object at a place may have."""
    models = [model]
    for step in where:
        if deeper := [found for each in models if (field := each.model_fields.get(str(step)))
                      for found in _models_in(field.annotation)]:  # fmt: skip
            models = deeper
        elif tagged := [each for each in models if step in _tags(each)]:
            models = tagged
    return sorted({name for each in models for name in each.model_fields})


def _tags(model: type[BaseModel]) -> tuple[Any, ...]:
    field = model.model_fields.get(_TAG)
    return get_args(field.annotation) if field is not None and get_origin(field.annotation) is Literal else ()


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)
