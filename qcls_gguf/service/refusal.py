"""Requests that are not answered: why, and with which status."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pydantic import BaseModel

from ..errors import BusyError, ConfigError, DeadlineError, PlanError, QclsError


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
    retry_ms: float | None = None
    """after which the client may ask again"""
    allow: str | None = None
    """the methods that a path takes"""

    def __str__(self) -> str:
        return self.message

    @property
    def headers(self) -> dict[str, str]:
        """What clients need to ask again, or to identify themselves."""
        headers = {} if self.allow is None else {"allow": self.allow}
        if self.retry_ms is not None:
            headers["retry-after-ms"] = str(math.ceil(self.retry_ms))
            headers["retry-after"] = str(math.ceil(self.retry_ms / 1e3))
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        if self.status in (408, 413, 415):  # what is left of the body is not read
            headers["connection"] = "close"
        return headers


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


# --- the usual words -------------------------------------------------------------------------------------------------

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


def openai_words(refusal: RefusedError) -> dict[str, object]:
    """The body of an error as OpenAI's API has it, and as ours has it."""
    kind = _TYPES.get(refusal.status, "server_error" if refusal.status >= 500 else "invalid_request_error")
    return {"error": {"message": refusal.message, "type": kind, "param": refusal.param, "code": refusal.reason}}
