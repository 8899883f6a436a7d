"""One line for each request, on standard error: for people, or as JSON. Queries and keys are never in it."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import orjson

from .settings import LogFormat

log = logging.getLogger("qcls_gguf.service")


def set_up(format_: LogFormat) -> None:
    """Let the service's lines go to standard error, and those of uvicorn that are warnings or worse."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines(as_json=format_ == "json"))
    for name, level in (("qcls_gguf.service", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level)


def access(**fields: Any) -> None:
    """Log a request."""
    log.info("", extra={"fields": fields})


class _Lines(logging.Formatter):
    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = getattr(record, "fields", None) or {"message": record.getMessage()}
        error = self.formatException(record.exc_info) if record.exc_info else None
        seconds = int(record.created)
        at = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{int((record.created - seconds) * 1e3):03}Z"
        if self._as_json:
            whole = {"time": at, "level": record.levelname.lower(), **fields}
            if error:
                whole["error"] = error
            return orjson.dumps(whole).decode()
        words = [at, *(f"{name}={_word(value)}" for name, value in fields.items())]
        if "message" in fields:
            words = [at, record.levelname.lower(), str(fields["message"])]
        return " ".join(words) + (f"\n{error}" if error else "")


def _word(value: Any) -> str:
    """A value without spaces or line breaks, so that a line stays one line of words."""
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return text if text.isprintable() and " " not in text else repr(text)
