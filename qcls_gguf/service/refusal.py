"""Requests that are not answered: why, with which status, and in whose words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from ..errors import BusyError, ConfigError, DeadlineError, PlanError, QclsError


class RefusedError(Exception):
    """Ends a request with an error.

    status: the HTTP status; reason: under which it is counted; param: the field that is wrong, such as `queries[3]`;
    retry_ms: after which the client may ask again; allow: the methods that a path takes.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        *,
        param: str | None = None,
        retry_ms: float | None = None,
        allow: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.param = param
        self.retry_ms = retry_ms
        self.allow = allow

    @property
    def headers(self) -> dict[str, str]:
        """What clients need to ask again, or to identify themselves."""
        found = {} if self.allow is None else {"allow": self.allow}
        if self.retry_ms is not None:
            found["retry-after-ms"] = str(math.ceil(self.retry_ms))
            found["retry-after"] = str(math.ceil(self.retry_ms / 1e3))
        if self.status == HTTPStatus.UNAUTHORIZED:
            found["www-authenticate"] = "Bearer"
        return found


def no_images(param: str) -> RefusedError:
    """The refusal of an image, or of something else that is no text."""
    return RefusedError(422, "invalid", f"{param}: images are not answered: this model reads text", param=param)


class ClientGoneError(Exception):
    """The client closed the connection before its request was answered."""


def refusal_of(error: QclsError, param: str | None = None) -> RefusedError:
    """What an error of the classifier is over HTTP; param: the field of the request that it is about."""
    match error:
        case DeadlineError():
            return RefusedError(504, "deadline", f"{error}: ask with a longer x-request-timeout-ms, or later")
        case BusyError():
            return RefusedError(503, "requests", str(error), retry_ms=1000)
        case PlanError() | ConfigError():
            return RefusedError(422, "invalid", str(error), param=param)
        case _:
            return RefusedError(500, "failed", str(error))


# --- the words of each API -------------------------------------------------------------------------------------------

Words = Callable[[RefusedError], Mapping[str, Any]]
"""The body of an error."""

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def openai_words(refusal: RefusedError) -> Mapping[str, Any]:
    """As OpenAI's API has it, and as ours has it."""
    kind = _TYPES.get(refusal.status, "server_error" if refusal.status >= 500 else "invalid_request_error")
    return {
        "error": {"message": refusal.message, "type": kind, "param": refusal.param, "code": refusal.reason},
    }


def vllm_words(refusal: RefusedError) -> Mapping[str, Any]:
    """As vLLM has it: its code is the status."""
    kind = HTTPStatus(refusal.status).phrase.replace(" ", "")
    return {"error": {"message": refusal.message, "type": kind, "param": refusal.param, "code": refusal.status}}


_TEI_TYPES = {422: "Validation", 429: "Overloaded", 503: "Overloaded", 413: "Validation", 400: "Validation"}


def tei_words(refusal: RefusedError) -> Mapping[str, Any]:
    """As text-embeddings-inference has it."""
    return {"error": refusal.message, "error_type": _TEI_TYPES.get(refusal.status, "Backend")}


def typesafe_words(refusal: RefusedError) -> Mapping[str, Any]:
    """As TypeSafe has it: a list of what is wrong for 422, else one error."""
    if refusal.status == HTTPStatus.UNPROCESSABLE_ENTITY:
        where = ["body", *(refusal.param or "").split(".")] if refusal.param else ["body"]
        return {"detail": [{"loc": where, "msg": refusal.message, "type": refusal.reason}]}
    return {"detail": {"error_type": refusal.reason, "message": refusal.message}}
