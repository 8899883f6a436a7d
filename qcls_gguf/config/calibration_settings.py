"""What a configuration says of calibration and abstention: the keys of a prompt, and those with a common default."""

from __future__ import annotations

from typing import Any, Literal

from ..errors import ConfigError
from .yaml_values import at, check_distinct, kind_of, number_of, text_of, text_or_none

Prior = Literal["none", "content_free"]
PRIORS: tuple[Prior, ...] = ("none", "content_free")
CONTENT_FREE_QUERIES = ("", "N/A", "[MASK]")
SHARED = ("prior", "content_free_queries", "min_confidence", "fallback")
"""The keys that may also be given for all prompts."""
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 100.0


def calibration_settings(mapping: dict[str, Any], where: str) -> dict[str, Any]:
    """The settings that a prompt, or the top level, gives; those left out are left out. Raises ConfigError."""
    given: dict[str, Any] = {}
    if (prior := mapping.get("prior")) is not None:
        if prior not in PRIORS:
            raise ConfigError(f"{at(where, 'prior')}: {prior!r} is not one of {', '.join(PRIORS)}")
        given["prior"] = prior
    if (queries := mapping.get("content_free_queries")) is not None:
        given["content_free_queries"] = _queries(queries, at(where, "content_free_queries"))
    if (temperature := mapping.get("temperature")) is not None:
        given["temperature"] = number_of(temperature, at(where, "temperature"), MIN_TEMPERATURE, MAX_TEMPERATURE)
    if (confidence := mapping.get("min_confidence")) is not None:
        given["min_confidence"] = _share(confidence, at(where, "min_confidence"))
    if (fallback := text_or_none(mapping, where, "fallback")) is not None:
        if not fallback.strip():
            raise ConfigError(f"{at(where, 'fallback')}: is empty: give it a text or remove it")
        given["fallback"] = fallback
    return given


def check_fallback(settings: dict[str, Any], where: str) -> None:
    """Refuse one of min_confidence and fallback without the other."""
    for key, other in (("min_confidence", "fallback"), ("fallback", "min_confidence")):
        if key in settings and other not in settings:
            raise ConfigError(f"{at(where, key)}: {settings[key]!r} needs {other}: give both or neither")


def _queries(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{where}: expected a list of at least one text, got {_kind(value)}")
    queries = tuple(text_of(query, f"{where}[{index}]") for index, query in enumerate(value))
    check_distinct(queries, where, "query")
    return queries


def _kind(value: Any) -> str:
    return "an empty list" if value == [] else kind_of(value)


def _share(value: Any, where: str) -> float:
    number = number_of(value, where, 0, 1)
    if number == 0:
        raise ConfigError(f"{where}: {value!r} is never undercut: give a number above 0, up to 1, or remove it")
    return number
