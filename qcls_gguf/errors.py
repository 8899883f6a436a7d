"""The exceptions that this package raises."""

from collections.abc import Iterator
from contextlib import contextmanager


class QclsError(Exception):
    """The base of every error that this package raises on purpose."""


class ConfigError(QclsError):
    """The configuration, or an argument of a call, is not usable as it is."""


class CapacityError(ConfigError):
    """A prompt set needs more than the engine was opened for."""


class ModelError(QclsError):
    """The model file is missing, damaged, unreachable or of an unsupported kind."""


class PlanError(QclsError):
    """A request does not fit into the token tree or the limits of the context."""


class QueryError(PlanError):
    """A query cannot be answered as it is: it is missing, no text, or too long."""


class DecodeError(QclsError):
    """The native library refused or failed a decode."""


class ScoreError(QclsError):
    """The scores cannot be computed, or are not finite."""


class BusyError(QclsError):
    """More callers wait than are allowed to; nothing was computed."""


class DeadlineError(QclsError):
    """A request's deadline passed before its turn; nothing was computed."""


@contextmanager
def prefixed(place: str) -> Iterator[None]:
    """Put a place before each line of a ConfigError that is raised inside."""
    try:
        yield
    except ConfigError as e:
        raise ConfigError("\n".join(f"{place}: {line}" for line in str(e).splitlines())) from None


@contextmanager
def readable(place: str) -> Iterator[None]:
    """Turn an OSError of reading a file inside into a ConfigError that begins with the place."""
    try:
        yield
    except OSError as e:
        raise ConfigError(f"{place}: cannot be read: {e.strerror or e}") from None
