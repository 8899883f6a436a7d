"""What is wrong with a body: the place, what is there, and pydantic's words for what belongs there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from ..config.words import MAX_LISTED, close_to, counted, shown
from .refusal import RefusedError

M = TypeVar("M", bound=BaseModel)
Place = tuple[int | str, ...]
"""the keys and indices that lead to a value"""

_TAG = "type"  # the field that says which kind an object is


def parse(model: type[M], value: object) -> M:
    """A value of JSON as a model. Raises RefusedError (422), which names up to 20 mistakes."""
    try:
        return model.model_validate(value)
    except ValidationError as e:
        mistakes = [(each, _place(each, value)) for each in e.errors(include_url=False)]
    # where a value may be of several types, and one fits but for something inside of it, that is told alone
    outer = {place[:n] for _, place in mistakes for n in range(len(place))}
    told = [(field_path(place), _words(each, model)) for each, place in mistakes if place not in outer]
    lines = list(dict.fromkeys(f"{path}: {what}" for path, what in told))
    if (n_more := len(lines) - MAX_LISTED) > 0:
        lines[MAX_LISTED:] = [f"and {counted(n_more, 'more mistake')}"]
    raise RefusedError(422, "invalid", "; ".join(lines), param=told[0][0])


def _place(error: Mapping[str, Any], value: Any) -> Place:
    """The place of a mistake: of pydantic's steps those that lead anywhere; the others name types."""
    place: Place = ()
    tagged = None  # the object whose tag was passed
    steps = error["loc"]
    if error["type"].startswith("union_tag"):
        steps = (*steps, _TAG)
    is_missing = error["type"] in ("missing", "union_tag_not_found")
    for n, step in enumerate(steps, 1):
        is_last = n == len(steps)
        if isinstance(value, dict) and value is not tagged and step == value.get(_TAG) and not is_last:
            tagged = value
        elif isinstance(value, dict) and (step in value or (is_last and is_missing)):
            place = (*place, step)
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            place = (*place, step)
            value = value[step]
    return place


def field_path(where: Place) -> str:
    """A place in a body in words, such as `queries[3]`."""
    path = ""
    for step in where:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    shown_path = path if path.isprintable() else repr(path)
    return shown_path[:200] or "the body"


def _words(error: Mapping[str, Any], model: type[BaseModel]) -> str:
    match error["type"]:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            close = close_to(error["loc"][-1], sorted(set(_fields(model))))
            return f"unknown field{f', did you mean {close}?' if close else ''}"
        case "value_error":
            return str(error["ctx"]["error"])
        case "union_tag_not_found":
            return "is missing"
        case "union_tag_invalid":
            return f"{shown(error['input'][_TAG])} is not one of {error['ctx']['expected_tags']}"
    return f"{error['msg']}, got {shown(error['input'])}"


def _fields(annotation: Any) -> Iterator[str]:
    """The names of all fields of a model and of those within it."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            yield name
            yield from _fields(field.annotation)
    for part in get_args(annotation):
        yield from _fields(part)
