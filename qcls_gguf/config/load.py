"""A configuration file: read, bounded, and made into a Config by the rules of schema.py."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated, Any

from pydantic import ValidationError, model_validator

from ..errors import ConfigError
from .cascade import CascadeConfig
from .prompt import (
    TEXT_KEYS,
    Confidence,
    FallbackText,
    FilledText,
    PriorName,
    Queries,
    ScoringName,
    TrueOrFalse,
    resolve_forced,
)
from .resources import config_path
from .rules import Text
from .schema import CalibrationPath, Config, IgnoredKinds, ModelConfig, Prompts, RuntimeConfig
from .settings import Mistake, Settings, check, config_error, given, mistakes, prefixed, refusal, settings
from .template import SLOT, no_query
from .words import kind_of
from .yaml_values import load_yaml, read_text


@settings
class Shared(Settings):
    """Settings of a prompt that the top level may give for all prompts; a prompt's own go before them."""

    prompt_template: Annotated[str, Text()] | None = None
    """the whole text of prompts that have none of their own; {name}, {labels} and {describe} are each prompt's"""
    system: Annotated[str, Text()] | None = None
    """instead of prompt_template: the system turn of prompts that have no texts of their own, or only a user text"""
    user: Annotated[str, Text()] | None = None
    """the user's turn, likewise"""
    answer_cue: Annotated[str, Text()] | None = None
    """how the answer to such prompts begins, such as `{name}:`"""
    scoring: ScoringName | None = None
    """how a label's tokens become its score, for prompts that do not say"""
    force_single_token_labels: TrueOrFalse | None = None
    """true: the same as scoring first_token"""
    label_end: FilledText | None = None
    """the token that ends a label which another begins with, for prompts that do not say"""
    prior: PriorName | None = None
    """content_free: what the labels score without content is taken off their scores"""
    content_free_queries: Queries | None = None
    """what such a prior is computed from"""
    min_confidence: Confidence | None = None
    """below this probability the answer is the fallback"""
    fallback: FallbackText | None = None
    """the answer below min_confidence, a text that need not be a label"""

    @model_validator(mode="before")
    @classmethod
    def _given(cls, values: Any) -> Any:
        found = given(values)
        return resolve_forced(found) if isinstance(found, dict) else found

    @model_validator(mode="after")
    def _check(self) -> Shared:
        if self.prompt_template is not None:
            if (n_slots := self.prompt_template.count(SLOT)) != 1:
                remedy = "it needs exactly one" if n_slots else no_query(self.prompt_template)
                raise refusal(f"has {n_slots} {SLOT} slots: {remedy}", "prompt_template")
            for key in TEXT_KEYS[1:]:
                if getattr(self, key) is not None:
                    raise refusal("is given beside prompt_template, which is the whole text: keep one of the two", key)
        return self


@settings
class ConfigFile(Shared):
    """A configuration of qcls-gguf: prompts and their labels, the model, and how to run it."""

    prompts: Prompts
    """each is asked about every query"""
    model: ModelConfig = field(default_factory=ModelConfig)
    """which model: a file, or a repository on the Hugging Face hub; neither means the embedded one"""
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    """how to run it"""
    calibration: CalibrationPath | None = None
    """the file that `qcls-gguf calibrate` wrote; a relative path starts from the configuration's folder"""
    cascade: CascadeConfig | None = None
    """cheaper stages that are asked first, as `qcls-gguf advise` writes them"""
    ignore_warnings: IgnoredKinds = ()
    """kinds of likely mistakes in the prompts that are not told, such as untrained; all: none is"""


_SHARED = tuple(Shared.__pydantic_fields__)  # type: ignore[attr-defined]


_ANY_TEXT = {"prompt_template": SLOT}
"""For prompts whose own mistakes are still to be told, where what they share is wrong."""


def load_config(path: str | Path) -> Config:
    """Read and check a configuration: a file, or by its name one that comes with the package, such as `fashion-8`.

    Raises ConfigError, with a line for each mistake.
    """
    try:
        file = config_path(path).expanduser()
    except RuntimeError as e:  # a home folder that nobody has
        raise ConfigError(f"{path}: the configuration cannot be read: {e}") from None
    try:
        return parse_config(read_text(file, "the configuration"), folder=file.parent, path=file)
    except ConfigError as e:
        raise prefixed(str(file), e) from None


def parse_config(text: str, *, folder: Path, path: Path | None = None) -> Config:
    """Check a configuration given as YAML text; relative paths in it resolve from folder. Raises ConfigError."""
    tree = load_yaml(text)
    if not isinstance(tree, dict):
        raise ConfigError(f"the configuration: expected keys and values, got {kind_of(tree)}")
    wrong: list[Mistake] = []
    shared = _shared(tree, wrong)
    body = {key: value for key, value in given(tree).items() if key not in _SHARED}
    if isinstance(body.get("prompts"), list):
        body["prompts"] = [_prompt(prompt, shared) for prompt in body["prompts"]]
    try:
        file = check(ConfigFile, body, folder=folder)
    except ValidationError as e:
        wrong += mistakes(e, ConfigFile)
    if wrong:
        raise config_error(wrong, tree)
    return Config(
        prompts=file.prompts,
        model=file.model,
        runtime=file.runtime,
        calibration=file.calibration,
        cascade=file.cascade,
        ignore_warnings=file.ignore_warnings,
        path=path,
    )


def _shared(tree: dict[Any, Any], wrong: list[Mistake]) -> dict[str, Any]:
    """The settings for all prompts; what is wrong with them is added to wrong, once and not for each prompt."""
    try:
        found = check(Shared, _without_last_breaks({key: tree[key] for key in _SHARED if key in tree}))
    except ValidationError as e:
        wrong += mistakes(e, Shared)
        return _ANY_TEXT
    values = {key: getattr(found, key) for key in _SHARED if key != "force_single_token_labels"}
    return {key: value for key, value in values.items() if value is not None}


def _prompt(prompt: Any, shared: dict[str, Any]) -> Any:
    """A prompt of the file with the settings for all prompts that it does not have itself."""
    own = given(prompt, keep=("label_prefix",))
    if not isinstance(own, dict):
        return own
    common = {key: value for key, value in shared.items() if key != "scoring" or "force_single_token_labels" not in own}
    has_own = [key for key in TEXT_KEYS if key in own]
    if "prompt_template" in own:
        common = {key: value for key, value in common.items() if key not in TEXT_KEYS}
    elif has_own:
        common.pop("prompt_template", None)
    return {**common, **_without_last_breaks(own)}


def _without_last_breaks(values: dict[Any, Any]) -> dict[Any, Any]:
    """The same with texts of prompts as they are meant: a block scalar (`|`) ends in a line break of its own."""
    return {
        key: value.removesuffix("\n") if key in TEXT_KEYS and isinstance(value, str) else value
        for key, value in values.items()
    }
