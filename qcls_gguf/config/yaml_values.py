"""Values of a YAML file, checked: every refusal names the place, the value and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Sequence
from typing import Any

import yaml

from ..errors import ConfigError

_MERGE = "tag:yaml.org,2002:merge"  # `<<: *anchor`, whose keys may be given again


class _Loader(yaml.SafeLoader):
    """A safe loader that refuses a key given twice, which YAML would let silently win over the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable):
                if key in seen:
                    raise ConfigError(f"line {key_node.start_mark.line + 1}: key {key!r} is given twice")
                seen.add(key)
        return super().construct_mapping(node, deep)


def load_yaml(text: str) -> Any:
    """The values of a YAML text. Raises ConfigError."""
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, KeyError, AttributeError, RecursionError) as e:
        # the safe loader lets through what converting an odd scalar (2024-13-01, !!bool x) raises
        raise ConfigError(f"not valid YAML: {e}") from None


def at(where: str, key: str) -> str:
    """The place of a key."""
    return f"{where}.{key}" if where else key


def hint(name: Any, known: Sequence[str]) -> str:
    """What an unknown name may have meant."""
    close = difflib.get_close_matches(str(name), known, n=1)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"


def mapping_of(tree: Any, where: str, known: set[str]) -> dict[str, Any]:
    """Keys and values, all of them known; nothing is an empty mapping, but for the whole file."""
    if tree is None and where:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{where or 'the configuration'}: expected keys and values, got {kind_of(tree)}")
    for key in tree:
        if key not in known:
            raise ConfigError(f"{at(where, str(key))}: unknown key, {hint(key, sorted(known))}")
    return tree


def required(mapping: dict[str, Any], where: str, key: str) -> Any:
    """A value that has to be there."""
    if mapping.get(key) is None:
        raise ConfigError(f"{at(where, key)}: is missing")
    return mapping[key]


def text_of(value: Any, where: str) -> str:
    """Text, of valid Unicode."""
    if not isinstance(value, str):
        raise ConfigError(f"{where}: {value!r} is {kind_of(value)}, not text: write it in quotes")
    try:
        value.encode()
    except UnicodeEncodeError as e:
        raise ConfigError(f"{where}: {value!r} is not valid Unicode: {e.reason}") from None
    return value


def text_or_none(mapping: dict[str, Any], where: str, key: str) -> str | None:
    """A text that is not empty, where there is one."""
    value = mapping.get(key)
    if value is None:
        return None
    if not text_of(value, at(where, key)):
        raise ConfigError(f"{at(where, key)}: is empty: give it a text or remove it")
    return str(value)


def number_of(value: Any, where: str, low: float, high: float) -> float:
    """A number from low to high."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ConfigError(f"{where}: {value!r} is not a number from {low:g} to {high:g}")
    return float(value)


def kind_of(value: Any) -> str:
    """What a value is, in words."""
    names = {bool: "a truth value", int: "a number", float: "a number", list: "a list", dict: "a mapping", str: "text"}
    return names.get(type(value), "nothing" if value is None else f"a {type(value).__name__}")


def check_distinct(texts: Sequence[str], where: str, what: str) -> None:
    """Refuse a text that is given twice."""
    for index, text in enumerate(texts):
        if text in texts[:index]:
            raise ConfigError(f"{where}[{index}]: {what} {text!r} is given twice")
