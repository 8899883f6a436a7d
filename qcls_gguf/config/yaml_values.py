"""YAML: the values of a text that a stranger may have written, with their lines and within limits; values as a text.

YAML has forms by which a file of a kilobyte becomes gigabytes or keeps a reader busy for minutes (aliases of aliases,
numbers in base 60). What the parser meets is counted first, then the nodes that it becomes, with what aliases repeat;
the values that PyYAML makes of them are no more.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..errors import ConfigError
from .words import shown

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_VALUES = 20_000
"""keys and values; what an alias repeats counts again, a long text as several"""
_N_CHARACTERS = 200
"""of a text count as one more value"""
_OPEN = 0
"""the size of a node whose parts are being counted"""
_MAX_NUMBER = 64  # characters of a number
_MAX_DIRECTIVES = 8

_TAG = "tag:yaml.org,2002:"
_FORMS = {
    "bool": ("tTfF", "true|True|TRUE|false|False|FALSE"),
    "int": ("-+0123456789", "[-+]?(0|[1-9][0-9]*)"),
    "float": ("-+.0123456789", r"([-+]?[0-9]+\.[0-9]*|\.[0-9]+)([eE][-+][0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"),
    "null": (("~", "n", "N", ""), "~|null|Null|NULL|"),
    "merge": ("<", "<<"),
}
"""what is no text without quotes, with the characters that it may begin with: as newer versions of YAML have it, so
that `no`, `on`, `=`, 010, 12:30, 1_000 and dates are texts, as people who write them as labels mean them"""
_REMEDIES = {
    "mapping values": "write a text that has a colon in quotes, or below |",
    "for merging": "write the text << in quotes",
    "expected comment": "write a text that begins with > or | in quotes",
    "cannot start any token": "indent with spaces, not with tabs, and write a text that begins with @ or ` in quotes",
    " tag": "write a text that begins with ! in quotes",
    "undefined alias": "write a text that begins with * in quotes",
    "expected alphabetic or numeric character": "write a text that begins with & or * in quotes",
    "expected key": "write a text that begins with : or ? in quotes",
    "node content": "write a text that begins with # - ? or another sign in quotes",
    "whitespace or line break": "write a text that begins with ! in quotes",
    "expected ',' or": "write a text that has quotes, brackets or braces in quotes of the other kind",
    "end of stream": "close the quotes, and write a text that begins with one in quotes of the other kind",
}
"""what to do about the mistakes that are made most"""
# With libyaml a file is read some twenty times as fast; wheels of PyYAML hold it.
_BASE: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


@dataclass(frozen=True, slots=True)
class YamlText:
    """The values of a YAML text: dicts, lists, texts, numbers, truth values and None."""

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
    except (OSError, ValueError) as e:  # a ValueError for a NUL in the path
        raise ConfigError(f"{what} cannot be read: {getattr(e, 'strerror', e)}") from None
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
        _check_events(text)
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            return YamlText(None, None)
        _size(root, {})
        return YamlText(loader.construct_document(root), root)
    except yaml.MarkedYAMLError as e:
        problem, mark = str(e.problem or e.context), e.problem_mark or e.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        remedy = "".join(f": {remedy}" for words, remedy in _REMEDIES.items() if words in problem)
        raise ConfigError(f"not valid YAML: {place}{problem}{remedy}") from None
    except (yaml.YAMLError, ValueError) as e:  # a ValueError for text that is no UTF-8
        raise ConfigError(f"not valid YAML: {' '.join(str(e).split())}") from None


class _Loader(_BASE):  # type: ignore[misc]
    """PyYAML's safe loader, whose errors all have a line, and to which less is no text."""

    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012  (PyYAML declares it so)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Make a value."""
        try:
            if node.tag == f"{_TAG}merge":  # where it merges nothing
                return node.value
            return super().construct_object(node, deep=deep)
        except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError):
            kind = node.tag.removeprefix(_TAG)
            what = f"{shown(node.value)} is no {kind}, which it looks like: write it in quotes"
            raise yaml.constructor.ConstructorError(None, None, what, node.start_mark) from None


for _name, (_first, _form) in _FORMS.items():
    _Loader.add_implicit_resolver(f"{_TAG}{_name}", re.compile(f"(?:{_form})$"), list(_first))


def _check_events(text: str) -> None:
    """Refuse what would be too deep or too long for PyYAML to take in."""
    depth = n_values = 0
    for event in yaml.parse(text, _BASE):
        n_values += isinstance(event, yaml.NodeEvent)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if n_values > MAX_VALUES:
            raise _refused(event, f"more than {MAX_VALUES} keys and values")
        if getattr(event, "tag", None) == "!":
            raise _refused(event, "! stands alone before a value: write a text that begins with it in quotes")
        if depth > MAX_DEPTH + 1:
            raise _refused(event, f"nested deeper than {MAX_DEPTH} levels")


def _size(node: Any, sizes: dict[yaml.Node, int]) -> int:
    """How many keys and values a node contains. Raises ConfigError if they are too many or not allowed.

    What an alias repeats counts each time; a long text counts as several values.
    """
    if node not in sizes:
        sizes[node] = _OPEN
        if isinstance(node, yaml.ScalarNode):
            if node.tag != f"{_TAG}str" and len(node.value) > _MAX_NUMBER:
                raise _refused(node, f"a number of {len(node.value)} characters: at most {_MAX_NUMBER} are read")
            n_values = 1 + len(node.value) // _N_CHARACTERS
        else:
            parts = node.value if isinstance(node, yaml.SequenceNode) else _parts(node)
            n_values = 1 + sum(_size(part, sizes) for part in parts)
        if n_values > MAX_VALUES:
            raise _refused(node, f"more than {MAX_VALUES} keys and values")
        sizes[node] = n_values
    if sizes[node] == _OPEN:
        raise _refused(node, "an alias is inside of what it repeats")
    return sizes[node]


def _parts(mapping: yaml.MappingNode) -> Iterator[yaml.Node]:
    """The keys and values of a mapping; a key that is given twice is refused."""
    keys = set()
    for key, value in mapping.value:
        if isinstance(key, yaml.ScalarNode) and (key.tag, key.value) in keys:
            raise _refused(key, f"key {shown(key.value)} is given twice")
        keys.add((key.tag, str(key.value)))
        yield from (key, value)


def _refused(at: Any, what: str) -> ConfigError:
    return ConfigError(f"not valid YAML: line {at.start_mark.line + 1}: {what}")


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
