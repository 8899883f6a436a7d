"""Configurations as YAML that people read: nothing that is a default, and texts that all prompts share once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import yaml

from .prompt import TEXT_KEYS
from .schema import Config, ModelConfig, RuntimeConfig

Tree = dict[str, object]
"""keys and values, as `load_yaml` returns them"""


def config_tree(config: Config) -> Tree:
    """The values of a configuration's file. The loader makes the same configuration of them; names of files are
    absolute."""
    parts = {"model": _changed(config.model, ModelConfig()), "runtime": _changed(config.runtime, RuntimeConfig())}
    tree: Tree = {key: values for key, values in parts.items() if values}
    for key in ("calibration", "cascade", "ignore_warnings"):
        if value := getattr(config, key):
            tree[key] = _plain(value)
    prompts = [_changed(prompt) for prompt in config.prompts]
    for key in TEXT_KEYS:
        if len(prompts) > 1 and key in prompts[0] and all(each.get(key) == prompts[0][key] for each in prompts):
            tree[key] = prompts[0][key]
            for prompt in prompts:
                del prompt[key]
    return {**tree, "prompts": prompts}


def yaml_text(value: object) -> str:
    """A value of dicts, lists, texts, numbers and truth values, in the order given."""
    return str(yaml.dump(value, Dumper=_Dumper, allow_unicode=True, sort_keys=False, width=float("inf")))


def text_block(text: str) -> str:
    """A prompt's text as `yaml_text` takes it, so that several lines become a block.

    The loader takes off the last line break, which such a block adds.
    """
    return f"{text}\n" if "\n" in text else text


def _changed(settings: object, default: object = None) -> Tree:
    """The settings that are no defaults."""
    found: Tree = {}
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]
        value = getattr(settings, field.name)
        if value != (field.default if default is None else getattr(default, field.name)):
            is_text = field.name in TEXT_KEYS and isinstance(value, str)
            found[field.name] = text_block(value) if is_text else _plain(value)
    return found


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return str(value.absolute()) if isinstance(value, Path) else value


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
