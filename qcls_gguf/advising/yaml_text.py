"""A configuration as a YAML file that people read: common texts once, nothing that is a default."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from ..config.cascade import CascadeConfig
from ..config.load import parse_config
from ..config.prompt import PromptConfig
from ..config.resources import schema_path
from ..config.schema import Config, ModelConfig, RuntimeConfig
from ..drafting.draft import mapping

_NAME = "{name}"
_TEXTS = ("prompt_template", "system", "user", "answer_cue")
_NOT_WRITTEN = (*_TEXTS, "name", "labels", "label_descriptions", "describe")


def config_yaml(config: Config, heading: Sequence[str]) -> str:
    """The text of a configuration whose prompts have whole texts; heading: comments above it, a line each.


    Read again it gives the same prompts; names of models' files are absolute. Raises ConfigError for prompts of system
    and user texts.
    """
    shared = _shared_template(config.prompts)
    tree: dict[str, Any] = {}
    if model := _differing(config.model, ModelConfig()):
        tree["model"] = {key: str(value) if isinstance(value, Path) else value for key, value in model.items()}
    if runtime := _differing(config.runtime, RuntimeConfig()):
        tree["runtime"] = runtime
    parts = [f"# {line}\n" for line in (f"yaml-language-server: $schema={schema_path().as_uri()}", *heading)]
    parts += [f"{key}:\n{mapping(values, indent=2)}" for key, values in tree.items()]
    if config.calibration is not None:
        parts.append(mapping({"calibration": str(config.calibration)}))
    if config.cascade is not None:
        parts.append(_cascade(config.cascade))
    if config.ignore_warnings:
        parts.append(mapping({"ignore_warnings": list(config.ignore_warnings)}))
    if shared is not None:
        parts.append(mapping({"prompt_template": _kept_break(shared)}))
    parts.append("prompts:\n")
    parts += [_prompt(prompt, shared) for prompt in config.prompts]
    text = "".join(parts)
    again = parse_config(text, folder=Path())
    assert [prompt.expanded_template for prompt in again.prompts] == [
        prompt.expanded_template for prompt in config.prompts
    ]
    return text


def _cascade(cascade: CascadeConfig) -> str:
    """The stages' files by their names: they are written to the same folder."""
    tree = dataclasses.asdict(cascade)
    for stage in (stages := list(tree["stages"])):
        stage["config"] = stage["config"].name
    return str(yaml.safe_dump({"cascade": {**tree, "stages": stages}}, allow_unicode=True, sort_keys=False, width=120))


def _shared_template(prompts: Sequence[PromptConfig]) -> str | None:
    """The text that most prompts have, with {name} for the name that their last line begins with."""
    texts = Counter(_with_slot(prompt) for prompt in prompts)
    text, n = texts.most_common(1)[0]
    return text if n > 1 else None


def _with_slot(prompt: PromptConfig) -> str:
    text = prompt.expanded_template
    at = max(text.rfind("\n"), text.rfind(">")) + 1
    if not text[at:] and text.endswith("\n"):  # the last line that is not empty
        at = max(text.rfind("\n", 0, -1), text.rfind(">")) + 1
    if not text[at:].startswith(prompt.name) or _NAME in text:
        return text
    return text[:at] + _NAME + text[at + len(prompt.name) :]


def _prompt(prompt: PromptConfig, shared: str | None) -> str:
    values: dict[str, Any] = {"name": prompt.name}
    if _with_slot(prompt) != shared:
        values["prompt_template"] = _kept_break(prompt.expanded_template)
    if prompt.describe is not None:
        values["describe"] = prompt.describe
    values["labels"] = list(prompt.labels)
    if prompt.label_descriptions is not None:
        values["label_descriptions"] = list(prompt.label_descriptions)
    for field in dataclasses.fields(prompt):
        if field.name not in _NOT_WRITTEN and (value := getattr(prompt, field.name)) != field.default:
            values[field.name] = list(value) if isinstance(value, tuple) else value
    return f"  - {mapping(values, indent=4).removeprefix('    ')}"


def _kept_break(text: str) -> str:
    """The text as a file says it: the loader takes a last line break for the block's own."""
    return f"{text}\n" if text.endswith("\n") else text


def _differing(settings: Any, default: Any) -> dict[str, Any]:
    """The settings that are no defaults."""
    return {
        field.name: value
        for field in dataclasses.fields(settings)
        if (value := getattr(settings, field.name)) != getattr(default, field.name)
    }
