"""What is wrong with a body, in words: the place, what is there, and what belongs there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from ..config.words import close_to, counted, hint, shown
from .refusal import RefusedError

M = TypeVar("M", bound=BaseModel)
Step = int | str
Place = tuple[Step, ...]
"""the keys and indices that lead to a value"""

_MOST_MISTAKES = 20
_TAG = "type"  # the field that says which kind an object is
_WANTED = {
    "string_type": "a text",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}


def parse(model: type[M], value: object) -> M:
    """A value of JSON as a model. Raises RefusedError (422), which names up to 20 mistakes."""
    try:
        return model.model_validate(value)
    except ValidationError as e:
        raise _refusal(e, model, value) from None


def _refusal(error: ValidationError, model: type[BaseModel], value: object) -> RefusedError:
    found: dict[str, list[str]] = {}
    wanted: dict[str, list[str]] = {}
    for each, place in _places(error, value):
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


def _places(error: ValidationError, value: object) -> list[tuple[Mapping[str, Any], Place]]:
    """The mistakes with their places. Where a value may be of several types and one of them fits but for something
    inside of it, what is said of the other types is left out.
    """
    mistakes = [(each, _place(each, value)) for each in error.errors(include_url=False)]
    outer = {place[:n] for _, place in mistakes for n in range(len(place))}
    return [(each, place) for each, place in mistakes if each["type"] not in _WANTED or place not in outer]


def _place(error: Mapping[str, Any], value: Any) -> Place:
    """The place of a mistake: of pydantic's steps those that lead anywhere; the others name types."""
    place: list[Step] = []
    tagged = None  # the object whose tag was passed
    steps = error["loc"]
    for n, step in enumerate(steps, 1):
        is_last = n == len(steps)
        if isinstance(value, dict) and value is not tagged and step == value.get(_TAG) and not is_last:
            tagged = value
        elif isinstance(value, dict) and (step in value or (is_last and error["type"] == "missing")):
            place.append(step)
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            place.append(step)
            value = value[step]
    return tuple(place)


def field_path(where: Sequence[Step]) -> str:
    """A place in a body in words, such as `queries[3]`."""
    path = ""
    for step in where:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else _name(step)
    return path or "the body"


def _name(name: str) -> str:
    return name if name.isprintable() and len(name) <= 100 else repr(name[:100])


def _what(error: Mapping[str, Any], model: type[BaseModel]) -> str:
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


def _no_tag(error: Mapping[str, Any]) -> str:
    if error["type"] == "union_tag_not_found":
        return "is missing"
    given, known = error["input"][_TAG], error["ctx"]["expected_tags"]
    close = close_to(given, [kind.strip("'") for kind in known.split(", ")])
    said = shown(given) if isinstance(given, str) else _got(given)
    return f"{said} is not one of {known}{f', did you mean {close}?' if close else ''}"


def _got(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case list():
            return "a list"
        case dict():
            return "an object"
        case str():
            return f"the text {shown(value)}"
    return f"the number {shown(value)}"


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
