"""The values of a YAML text that a stranger may have written: bounded in size, depth, numbers and repetition.

YAML has forms by which a file of a kilobyte becomes gigabytes or keeps a reader busy for minutes (aliases of aliases,
numbers in base 60, types made by tags). Settings need none of them, so that what is not plain is refused by its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..errors import ConfigError
from .words import shown

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_VALUES = 20_000
"""keys and values, those that aliases repeat counted each time"""
MAX_CHARACTERS = 4 << 20
"""of all texts, those that aliases repeat counted each time"""
_MAX_NUMBER = 64  # characters of a number
_MAX_DIRECTIVES = 8

_TAG = "tag:yaml.org,2002:"
_TEXT = ("!", f"{_TAG}str")
_OTHER_BASE = {  # 010 is 8, 12:30 is 750, 1:30.5 is 90.5
    f"{_TAG}int": re.compile(r"[-+]?(0[0-9_]|[0-9_]+:)"),
    f"{_TAG}float": re.compile(r"[-+]?[0-9_]+:"),
}
_TYPOGRAPHIC = re.compile(r"([^:]*:\s+)?[“”„‟][^“”]*$")
"""A line, without what indents it, up to a colon in a value that begins with a typographic quote, not closed before."""
_MERGE = object()  # the key `<<`, which takes over the keys of other mappings
# With libyaml a file is read some twenty times as fast; wheels of PyYAML hold it.
_LOADER: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


def read_text(path: Path, what: str) -> str:
    """The text of a file of at most MAX_BYTES; what: such as `the configuration`. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as e:
        raise ConfigError(f"{what} cannot be read: {e.strerror}") from None
    except ValueError as e:  # a NUL in the path
        raise ConfigError(f"{what} cannot be read: {e}") from None
    if content.startswith(b"GGUF"):
        raise ConfigError(f"{what} is a GGUF file, which is a model: give it as the model, and a YAML file here")
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{what} is larger than {MAX_BYTES} bytes, the most that is read")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as e:
        line = content.count(b"\n", 0, e.start) + 1
        raise ConfigError(f"{what} is not valid UTF-8 at byte {e.start}, in line {line}: save it as UTF-8") from None


def load_yaml(text: str) -> Any:
    """The values of a YAML text: dicts, lists, texts, numbers, truth values, dates and None. Raises ConfigError."""
    if len(text) > MAX_BYTES:
        raise ConfigError(f"not valid YAML: {len(text)} characters, at most {MAX_BYTES} are read")
    if sum(line.startswith("%") for line in text.splitlines()) > _MAX_DIRECTIVES:
        raise ConfigError(f"not valid YAML: more than {_MAX_DIRECTIVES} lines begin with %")
    try:
        return _Reader(yaml.parse(text, _LOADER)).document()
    except yaml.MarkedYAMLError as e:
        raise ConfigError(f"not valid YAML: {_place(e)}{e.problem or e.context}{_remedy(e, text)}") from None
    except (yaml.YAMLError, ValueError) as e:  # a ValueError for text that is no UTF-8
        raise ConfigError(f"not valid YAML: {' '.join(str(e).split())}") from None


def _place(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    return f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""


def _remedy(error: yaml.MarkedYAMLError, text: str) -> str:
    """What to do about the mistakes that are made most."""
    if error.problem_mark is None:
        return ""
    line = text.splitlines()[error.problem_mark.line :][:1]
    if not line:
        return ""
    if "\t" in line[0][: len(line[0]) - len(line[0].lstrip())]:
        return ": the line is indented with a tab, use spaces"
    if error.problem and "mapping values" in error.problem:
        if _TYPOGRAPHIC.match(line[0][: error.problem_mark.column].lstrip(" -")):
            return ': the value begins with a typographic quote, write "'
        return ": write a text that has a colon in quotes, or below |"
    return ""


@dataclass(slots=True)
class _Size:
    """What a value counts."""

    n_values: int = 0
    n_characters: int = 0


class _Reader:
    """Makes values of the events of a YAML parser, and stops where they are too many, too deep or too odd."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events
        self._size = _Size()
        self._anchored: dict[str, tuple[Any, _Size] | None] = {}  # None while the value is being read
        self._resolver: Any = yaml.resolver.Resolver()
        self._scalars: Any = yaml.constructor.SafeConstructor()

    def document(self) -> Any:
        """The value of the only document; None of a text without one."""
        next(self._events)  # the start of the stream
        event = next(self._events)
        if isinstance(event, yaml.StreamEndEvent):
            return None
        value = self._value(next(self._events), 0)
        next(self._events)  # the end of the document
        if not isinstance(event := next(self._events), yaml.StreamEndEvent):
            raise _refused(event, "a second document begins: write one only")
        return value

    def _value(self, event: Any, depth: int) -> Any:
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        before = _Size(self._size.n_values, self._size.n_characters)
        if event.anchor is not None:
            self._anchored[event.anchor] = None
        if depth > MAX_DEPTH:
            raise _refused(event, f"nested deeper than {MAX_DEPTH} levels")
        self._count(event, 1, 0)
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event)
        elif event.tag not in (None, "!", f"{_TAG}map" if isinstance(event, yaml.MappingStartEvent) else f"{_TAG}seq"):
            raise _refused(event, f"the tag {shown(event.tag, quoted=False)} is not for a configuration: leave it out")
        elif isinstance(event, yaml.MappingStartEvent):
            value = self._mapping(depth)
        else:
            value = [self._value(item, depth + 1) for item in self._until(yaml.SequenceEndEvent)]
        if event.anchor is not None:
            size = self._size
            own = _Size(size.n_values - before.n_values, size.n_characters - before.n_characters)
            self._anchored[event.anchor] = value, own
        return value

    def _until(self, end: type) -> Iterator[Any]:
        while not isinstance(event := next(self._events), end):
            yield event

    def _count(self, event: Any, n_values: int, n_characters: int) -> None:
        self._size.n_values += n_values
        self._size.n_characters += n_characters
        if self._size.n_values > MAX_VALUES:
            raise _refused(event, f"more than {MAX_VALUES} keys and values")
        if self._size.n_characters > MAX_CHARACTERS:
            raise _refused(event, f"more than {MAX_CHARACTERS} characters, with what its aliases repeat")

    def _alias(self, event: Any) -> Any:
        name = shown(event.anchor, quoted=False)
        if event.anchor not in self._anchored:
            raise _refused(event, f"the alias *{name} has no anchor &{name} before it")
        found = self._anchored[event.anchor]
        if found is None:
            raise _refused(event, f"the alias *{name} is inside of what it repeats")
        value, size = found
        self._count(event, size.n_values, size.n_characters)
        return value

    def _scalar(self, event: Any) -> Any:
        text = event.value
        self._count(event, 0, len(text))
        if event.tag is not None:
            if event.tag not in _TEXT:
                tag = shown(event.tag, quoted=False)
                raise _refused(event, f"the tag {tag} is not for a configuration: leave it out")
            return text
        if not event.implicit[0]:  # in quotes, or a block
            return text
        tag = self._resolver.resolve(yaml.ScalarNode, text, (True, False))
        if tag == f"{_TAG}str":
            return text
        if tag in (f"{_TAG}merge", f"{_TAG}value"):
            raise _refused(event, f"{text} has a meaning of its own in YAML: write it in quotes")
        if len(text) > _MAX_NUMBER:
            raise _refused(event, f"a number of {len(text)} characters: at most {_MAX_NUMBER} are read")
        try:
            value = self._scalars.yaml_constructors[tag](self._scalars, yaml.ScalarNode(tag, text))
        except (ValueError, KeyError, AttributeError, ArithmeticError, yaml.YAMLError):
            kind = tag.removeprefix(_TAG)
            raise _refused(event, f"{shown(text)} is no {kind}, which it looks like: write it in quotes") from None
        if tag in _OTHER_BASE and _OTHER_BASE[tag].match(text):
            raise _refused(event, f"{text} is the number {shown(value)} to YAML: write that, or a text in quotes")
        return value

    def _mapping(self, depth: int) -> dict[Any, Any]:
        own: dict[Any, Any] = {}
        merged: list[dict[Any, Any]] = []
        for event in self._until(yaml.MappingEndEvent):
            key = self._key(event, depth + 1)
            value_event = next(self._events)
            value = self._value(value_event, depth + 1)
            if key is _MERGE:
                merged += self._merged(value_event, value)
                continue
            if key in own:
                raise ConfigError(f"line {event.start_mark.line + 1}: key {shown(key)} is given twice")
            own[key] = value
        found: dict[Any, Any] = {}
        for other in (*reversed(merged), own):  # the first that is merged goes before the next
            found.update(other)
        return found

    def _key(self, event: Any, depth: int) -> Any:
        if isinstance(event, yaml.ScalarEvent) and event.implicit[0] and event.tag is None and event.value == "<<":
            self._count(event, 1, 0)
            return _MERGE
        if not isinstance(event, yaml.ScalarEvent | yaml.AliasEvent):
            raise _refused(event, "a key is a list or a mapping: write a text")
        key = self._value(event, depth)
        if isinstance(key, list | dict):
            raise _refused(event, "a key is a list or a mapping: write a text")
        return key

    def _merged(self, event: Any, value: Any) -> list[dict[Any, Any]]:
        others = value if isinstance(value, list) else [value]
        if not all(isinstance(other, dict) for other in others):
            raise _refused(event, "<< takes over the keys of a mapping, or of a list of mappings")
        return others


def _refused(event: Any, what: str) -> ConfigError:
    return ConfigError(f"not valid YAML: line {event.start_mark.line + 1}: {what}")
