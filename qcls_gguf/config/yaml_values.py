"""YAML: the values of a text that a stranger may have written, with their lines and within limits; values as a text.

YAML has forms by which a file of a kilobyte becomes gigabytes or keeps a reader busy for minutes (aliases of aliases,
numbers in base 60). The parser's events are counted first, with what aliases repeat; what PyYAML makes of them then is
no larger.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
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
_OTHER_BASE = re.compile(r"[-+]?(0[0-9_]+|[0-9_]+:[0-9_:.]+)$")  # 010 is 8, 12:30 is 750, 1:30.5 is 90.5
_TYPOGRAPHIC = re.compile(r"([^:]*:\s+)?[“”„‟][^“”]*$")
"""A line, without what indents it, up to a colon in a value that begins with a typographic quote, not closed before."""
_IN_OTHER_WORDS = {
    "but found another document": "a second document begins: write one only",
    "found undefined alias": "an alias has no anchor before it",
    "found unhashable key": "a key is a list or a mapping: write a text",
}
_RESOLVER: Any = yaml.resolver.Resolver()
# With libyaml a file is read some twenty times as fast; wheels of PyYAML hold it.
_BASE: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


@dataclass(frozen=True, slots=True)
class YamlText:
    """The values of a YAML text: dicts, lists, texts, numbers, truth values, dates and None."""

    values: Any
    _root: yaml.Node | None

    def line(self, where: Sequence[str | int]) -> int | None:
        """The line of a key or item, or of the innermost one around it that is there; from 1."""
        node, line = self._root, None
        for step in where:
            if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                key = node = node.value[step]
            elif isinstance(node, yaml.MappingNode):
                pairs = [pair for pair in node.value if pair[0].value == str(step)]
                if not pairs:
                    break
                key, node = pairs[-1]  # the keys that << takes over stand before its own
            else:
                break
            line = key.start_mark.line + 1
        return line


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


def load_yaml(text: str) -> YamlText:
    """Read a YAML text. Raises ConfigError, with the line."""
    if len(text) > MAX_BYTES:
        raise ConfigError(f"not valid YAML: {len(text)} characters, at most {MAX_BYTES} are read")
    if sum(line.startswith("%") for line in text.splitlines()) > _MAX_DIRECTIVES:
        raise ConfigError(f"not valid YAML: more than {_MAX_DIRECTIVES} lines begin with %")
    try:
        _Counter().count(yaml.parse(text, _BASE))
        loader = _Loader(text)
        root = loader.get_single_node()
        return YamlText(None if root is None else loader.construct_document(root), root)
    except yaml.MarkedYAMLError as e:
        problem = str(e.problem or e.context)
        what = f"{_IN_OTHER_WORDS.get(problem, problem)}{_remedy(e, text)}"
        raise ConfigError(f"not valid YAML: {_place(e)}{what}") from None
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


class _Loader(_BASE):  # type: ignore[misc]
    """PyYAML's safe loader, whose errors all have a line."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Make a value; a number in another base than it looks like is refused."""
        try:
            value = super().construct_object(node, deep=deep)
        except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError):
            kind = node.tag.removeprefix(_TAG)
            what = f"{shown(node.value)} is no {kind}, which it looks like: write it in quotes"
            raise yaml.constructor.ConstructorError(None, None, what, node.start_mark) from None
        if isinstance(value, int | float) and isinstance(node.value, str) and _OTHER_BASE.match(node.value):
            what = f"{node.value} is the number {shown(value)} to YAML: write that, or a text in quotes"
            raise yaml.constructor.ConstructorError(None, None, what, node.start_mark)
        return value


@dataclass(slots=True)
class _Collection:
    """A mapping or a list while its events arrive."""

    event: Any
    n_values: int
    """those before it, itself included"""
    n_characters: int
    keys: set[tuple[str, str]] = field(default_factory=set)
    """of a mapping, its keys so far"""
    n_parts: int = 0
    """keys, values and items so far"""


class _Counter:
    """Counts what the events of a parser will become, and stops where it is too much, too deep or given twice."""

    def __init__(self) -> None:
        self._n_values = self._n_characters = 0
        self._open: list[_Collection] = []
        self._sizes: dict[str, tuple[int, int]] = {}
        """values and characters of each anchored value"""

    def count(self, events: Iterator[Any]) -> None:
        """Go through all events. Raises ConfigError."""
        for event in events:
            if isinstance(event, yaml.CollectionEndEvent):
                done = self._open.pop()
                self._anchor(done.event, done.n_values - 1, done.n_characters)
            elif isinstance(event, yaml.NodeEvent):
                self._node(event)

    def _node(self, event: Any) -> None:
        n_values, n_characters = self._n_values, self._n_characters
        if isinstance(event, yaml.AliasEvent):
            if any(each.event.anchor == event.anchor for each in self._open):
                name = shown(event.anchor, quoted=False)
                raise _refused(event, f"the alias *{name} is inside of what it repeats")
            size = self._sizes.get(str(event.anchor), (0, 0))  # PyYAML refuses an alias without an anchor
        else:
            size = (1, len(event.value) if isinstance(event, yaml.ScalarEvent) else 0)
        self._n_values += size[0]
        self._n_characters += size[1]
        if self._n_values > MAX_VALUES:
            raise _refused(event, f"more than {MAX_VALUES} keys and values")
        if self._n_characters > MAX_CHARACTERS:
            raise _refused(event, f"more than {MAX_CHARACTERS} characters, with what its aliases repeat")
        if self._open:
            self._part(event, self._open[-1])
        if isinstance(event, yaml.ScalarEvent):
            if event.implicit[0] and len(event.value) > _MAX_NUMBER and _tag(event) != f"{_TAG}str":
                raise _refused(event, f"a number of {len(event.value)} characters: at most {_MAX_NUMBER} are read")
            self._anchor(event, n_values, n_characters)
        elif isinstance(event, yaml.CollectionStartEvent):
            if len(self._open) > MAX_DEPTH:
                raise _refused(event, f"nested deeper than {MAX_DEPTH} levels")
            self._open.append(_Collection(event, self._n_values, n_characters))

    def _part(self, event: Any, around: _Collection) -> None:
        """Note a key, a value or an item; a key that was there is refused."""
        is_key = isinstance(around.event, yaml.MappingStartEvent) and around.n_parts % 2 == 0
        around.n_parts += 1
        if is_key and isinstance(event, yaml.ScalarEvent):
            key = (_tag(event), event.value)
            if key in around.keys:
                raise _refused(event, f"key {shown(event.value)} is given twice")
            around.keys.add(key)

    def _anchor(self, event: Any, n_values: int, n_characters: int) -> None:
        """Remember what an anchored value counts; before it there were so many values and characters."""
        if event.anchor is not None:
            self._sizes[event.anchor] = self._n_values - n_values, self._n_characters - n_characters


def _tag(event: Any) -> str:
    """The type of a text that YAML reads as one."""
    return event.tag or _RESOLVER.resolve(yaml.ScalarNode, event.value, event.implicit)  # type: ignore[no-any-return]


def _refused(event: Any, what: str) -> ConfigError:
    return ConfigError(f"not valid YAML: line {event.start_mark.line + 1}: {what}")


def yaml_text(value: object) -> str:
    """A value of dicts, lists, texts, numbers and truth values, in the order given."""
    return str(yaml.dump(value, Dumper=_Dumper, allow_unicode=True, sort_keys=False, width=float("inf")))


def text_block(text: str) -> str:
    """A prompt's text as `yaml_text` takes it, so that several lines become a block.

    The loader takes off the last line break, which such a block adds.
    """
    return f"{text}\n" if "\n" in text else text


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, lists of plain values on one line, other lists indented."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """For PyYAML."""
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: object) -> bool:
        """For PyYAML: equal lists stand where they are used."""
        return True

    def text(self, text: str) -> yaml.Node:
        """A text, as a block where it has several lines that YAML keeps as they are."""
        return self.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    def sequence(self, values: Sequence[object]) -> yaml.Node:
        """A list, on one line if its values are plain."""
        is_plain = not any(isinstance(value, dict | list) for value in values)
        return self.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=is_plain)


_Dumper.add_representer(str, _Dumper.text)
_Dumper.add_representer(list, _Dumper.sequence)
