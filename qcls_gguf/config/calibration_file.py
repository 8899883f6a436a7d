"""What `qcls-gguf calibrate` fitted, in a YAML file: written, read and checked against a configuration.

Every fit is stamped with the model's sha256 and with a hash of everything else that a prompt's scores depend on, so
that a fit is never applied to scores that it was not made for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeAlias

import yaml
from pydantic import Field, ValidationError

from ..errors import ConfigError
from .prompt import PromptConfig, Temperature
from .rules import Text
from .schema import Config, short
from .scoring import Scoring
from .settings import Mistake, Settings, check, config_error, mistakes, prefixed, settings
from .words import JsonObject
from .yaml_values import YamlText, load_yaml, read_text

_AGAIN = "run `qcls-gguf calibrate` again"
_LARGEST_BIAS = 1000.0
_BiasNumber: TypeAlias = Annotated[float, Field(strict=True, ge=-_LARGEST_BIAS, le=_LARGEST_BIAS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCalibration:
    """One prompt's fit."""

    temperature: float
    bias: tuple[float, ...] | None = None
    """in the order of the labels"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedFile:
    """What a command fitted to one model and to the prompts of a configuration."""

    path: Path
    model_sha256: str

    command: ClassVar[str]

    def check_model(self, sha256: str) -> None:
        """Raise ConfigError for another model than the one that it was fitted to."""
        if sha256 != self.model_sha256:
            raise ConfigError(
                f"{self.path} was made with the model of sha256 {short(self.model_sha256)}, this one is "
                f"{short(sha256)}: run `qcls-gguf {self.command}` again"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration(FittedFile):
    """The fits of a file, checked against the prompts of a configuration."""

    command = "calibrate"

    prompts: Mapping[str, PromptCalibration]


def prompt_hash(prompt: PromptConfig) -> str:
    """sha256 of everything but the model that a prompt's scores and prior depend on."""
    parts = {
        "prompt_template": prompt.expanded_template,
        "label_prefix": prompt.label_prefix,
        "labels": prompt.labels,
        "scoring": prompt.scoring,
        "label_end": prompt.label_end,
        "prior": prompt.prior,
        "content_free_queries": prompt.content_free_queries if prompt.prior == "content_free" else (),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@settings
class _Fit(Settings):
    """What the file says of a prompt; `fit`, how it was fitted, is for people."""

    prompt_hash: Text
    scoring: Scoring
    temperature: Temperature
    bias: dict[str, _BiasNumber] | None = None
    fit: Any = None


@settings
class _File(Settings):
    """A calibration file."""

    model_sha256: Text
    prompts: Annotated[dict[str, _Fit], Field(min_length=1)]


def read_calibration(config: Config) -> Calibration | None:
    """The calibration file of a configuration, where it names one. Raises ConfigError, with a line for each mistake."""
    path = config.calibration
    if path is None:
        return None
    try:
        return _calibration(load_yaml(read_text(path, "the file")), path, {each.name: each for each in config.prompts})
    except ConfigError as e:
        raise prefixed(f"calibration: {path}", e) from None


def _calibration(text: YamlText, path: Path, prompts: Mapping[str, PromptConfig]) -> Calibration:
    if not isinstance(text.values, dict):
        raise ConfigError("is no calibration: expected model_sha256 and prompts")
    try:
        file = check(_File, text.values)
    except ValidationError as e:
        raise config_error(mistakes(e, _File), text.values, file=text) from None
    found = {name: _mismatch(fit, prompts.get(name), list(prompts)) for name, fit in file.prompts.items()}
    if wrong := [Mistake(("prompts", name), what) for name, what in found.items() if what]:
        raise config_error(wrong, text.values, file=text)
    fits = {}
    for name, fit in file.prompts.items():
        bias = None if fit.bias is None else tuple(fit.bias[label] for label in prompts[name].labels)
        fits[name] = PromptCalibration(temperature=fit.temperature, bias=bias)
    return Calibration(path=path, model_sha256=file.model_sha256, prompts=fits)


def _mismatch(fit: _Fit, prompt: PromptConfig | None, names: Sequence[str]) -> str | None:
    """Why a fit is not for the prompt of its name."""
    if prompt is None:
        return f"is no prompt of the configuration, which has {', '.join(names)}"
    if prompt.temperature is not None:
        return (
            f"the configuration gives this prompt temperature {prompt.temperature:g} as well: "
            "remove it, or this prompt from the calibration"
        )
    if fit.prompt_hash != (now := prompt_hash(prompt)):
        return (
            f"was fitted to the prompt of hash {short(fit.prompt_hash)}, it is {short(now)} now "
            f"(template, labels, scoring, prior): {_AGAIN}"
        )
    if fit.bias is not None and set(fit.bias) != set(prompt.labels):
        return f"its bias has other labels than the prompt: {_AGAIN}"
    return None


def calibration_text(model_sha256: str, prompts: Mapping[str, JsonObject]) -> str:
    """The YAML text of a calibration; prompts: each one's entry, in order."""
    tree = {"model_sha256": model_sha256, "prompts": dict(prompts)}
    head = "# Written by `qcls-gguf calibrate`; it holds for this model and these prompts only.\n"
    return head + yaml.safe_dump(tree, allow_unicode=True, sort_keys=False)
