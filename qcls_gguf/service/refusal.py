"""Refusals of requests: reason and status, and mistakes in a body as pydantic reports them."""

import codecs
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from ..config.words import MAX_LISTED, counted, hint, shown
from ..errors import BusyError, ConfigError, DeadlineError, PlanError, QclsError
from ..questions.asking import SpaceError
from ..questions.closed_lists import OpenAnswerError
from ..questions.question import UnknownPromptError

M = TypeVar("M", bound=BaseModel)
Place = tuple[int | str, ...]
"""the keys and indices that lead to a value"""

_TAG = "type"  # the field that says which kind an object is
NO_IMAGES = "images are not answered: this model reads text"


@dataclass(eq=False)
class RefusedError(Exception):
    """Ends a request with an error."""

    status: int
    """of HTTP"""
    reason: str
    """under which it is counted"""
    message: str
    param: str | None = None
    """the field that is wrong, such as `queries[3]`"""
    headers: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message


def unavailable(reason: str, what: str, retry_ms: float = 1000.0) -> RefusedError:
    """The refusal (503) of what can be asked again after some time."""
    headers = {"retry-after-ms": str(math.ceil(retry_ms)), "retry-after": str(math.ceil(retry_ms / 1e3))}
    return RefusedError(503, reason, what, headers=headers)


def invalid(param: str, what: str) -> RefusedError:
    """The refusal (422) of a field; what: what is wrong with it."""
    return RefusedError(422, "invalid", f"{param}: {what}", param=param)


def check_size(n: int, most: int, of_what: str, param: str, remedy: str) -> None:
    """Raise RefusedError (413) for more than is allowed."""
    if n > most:
        what = f"{param}: {n:,} {of_what}, at most {most:,} {of_what} are allowed: {remedy}"
        raise RefusedError(413, "too large", what, param=param)


def refusal_of(error: QclsError | RefusedError, param: str | None = None) -> RefusedError:
    """The refusal for an error; param: the field of the request that an error of the classifier is about."""
    param = getattr(error, "param", param)
    match error:
        case RefusedError():
            return error
        case DeadlineError():
            return RefusedError(504, "deadline", f"{error}: ask with a longer x-request-timeout-ms, or later")
        case SpaceError():
            what = "questions that are being answered take the capacity that this one's options need: ask again later"
            return unavailable("capacity", what)
        case BusyError():
            return unavailable("requests", str(error))
        case UnknownPromptError():
            return RefusedError(404, "unknown prompt", str(error), param=param)
        case OpenAnswerError():
            return RefusedError(400, "open answer", str(error), param=param)
        case PlanError() | ConfigError():
            return RefusedError(422, "invalid", str(error), param=param)
        case _:
            return RefusedError(500, "failed", str(error))


# --- the usual words -------------------------------------------------------------------------------------------------

_TYPES = {401: "authentication", 404: "not_found", 503: "overloaded", 504: "timeout"}


def openai_words(refusal: RefusedError) -> dict[str, object]:
    """The body of an error as OpenAI's API has it, and as ours has it."""
    kind = _TYPES.get(refusal.status, "server" if refusal.status >= 500 else "invalid_request")
    return {
        "error": {"message": refusal.message, "type": f"{kind}_error", "param": refusal.param, "code": refusal.reason}
    }


# --- mistakes in a body ----------------------------------------------------------------------------------------------


def json_value(data: bytes | bytearray, param: str = "the body") -> object:
    """The value of a JSON text. Raises RefusedError (400)."""
    try:
        return from_json(data, allow_inf_nan=False)
    except ValueError as e:
        has_mark = data.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        remedy = "; it begins with a byte order mark: send UTF-8 without one" if has_mark else ""
        raise RefusedError(400, "malformed", f"{param} is not valid JSON in UTF-8: {e}{remedy}") from None


def parse(model: type[M], value: object) -> M:
    """A value of JSON as a model. Raises RefusedError (422), which names up to 20 mistakes."""
    try:
        return model.model_validate(value)
    except ValidationError as e:
        if (n := e.error_count()) > 1000:  # to word all would keep other requests waiting
            raise RefusedError(422, "invalid", f"the body has {n} mistakes: see docs/serving.md") from None
        mistakes = [(mistake, _place(mistake, value)) for mistake in e.errors(include_url=False)]
    # if a value may have several types and fits one except for something inside it, only that is reported
    outer = {place[:n] for _, place in mistakes for n in range(len(place))}
    told = [(_path(place), _words(mistake, model)) for mistake, place in mistakes if place not in outer]
    lines = list(dict.fromkeys(f"{path}: {what}" for path, what in told))
    if (n_left := len(lines) - MAX_LISTED) > 0:
        lines[MAX_LISTED:] = [f"and {counted(n_left, 'more mistake')}"]
    raise RefusedError(422, "invalid", "; ".join(lines), param=told[0][0])


def _place(error: Mapping[str, Any], value: Any) -> Place:
    """The place of a mistake: pydantic's steps without those that only name types."""
    steps = (*error["loc"], _TAG) if error["type"].startswith("union_tag") else error["loc"]
    place: Place = ()
    for n, step in enumerate(steps, 1):
        is_tag = isinstance(value, dict) and step == value.get(_TAG) and n < len(steps)
        with suppress(LookupError, TypeError):
            value, place = (value, place) if is_tag else (value[step], (*place, step))
    return (*place, steps[-1]) if error["type"] in ("missing", "union_tag_not_found") else place


def _path(place: Place) -> str:
    """A place in a body in words, such as `queries[3]`."""
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).removeprefix(".")
    return (path if path.isprintable() else repr(path))[:200] or "the body"


def _words(error: Mapping[str, Any], model: type[BaseModel]) -> str:
    match error["type"]:
        case "missing" | "union_tag_not_found":
            return "is missing"
        case "extra_forbidden":
            name, *below = error["loc"]
            return "unknown field" if below else f"unknown field, {hint(name, sorted(model.model_fields))}"
        case "value_error":
            return str(error["ctx"]["error"])
        case "union_tag_invalid":
            tag = error["input"][_TAG]
            why = f"; {NO_IMAGES}" if tag in ("input_image", "box") else ""
            return f"{shown(tag)} is not one of {error['ctx']['expected_tags']}{why}"
    return f"{error['msg']}, got {shown(error['input'])}"
