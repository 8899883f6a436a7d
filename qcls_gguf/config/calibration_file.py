"""What `qcls-gguf calibrate` fitted, in a YAML file: written, read and checked against a configuration.

Every fit is stamped with the model's sha256 and with a hash of everything else that a prompt's scores depend on, so
that a fit is never applied to scores that it was not made for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import yaml
from pydantic import BeforeValidator, ValidationError, ValidationInfo

from ..errors import ConfigError
from .prompt import MAX_TEMPERATURE, MIN_TEMPERATURE, PromptConfig
from .rules import Number, Text
from .schema import Config, short
from .scoring import Scoring
from .settings import Mistake, Settings, check, config_error, given, mistakes, prefixed, refusal, settings
from .words import JsonObject, hint, shown
from .yaml_values import YamlText, load_yaml, read_text

_AGAIN = "run `qcls-gguf calibrate` again"
_LARGEST_BIAS = 1000.0
_BiasNumber: TypeAlias = Annotated[float, Number(-_LARGEST_BIAS, _LARGEST_BIAS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCalibration:
    """One prompt's fit."""

    temperature: float
    bias: tuple[float, ...] | None = None
    """in the order of the labels"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The fits of a file, checked against the prompts of a configuration."""

    path: Path
    model_sha256: str
    prompts: Mapping[str, PromptCalibration]

    def check_model(self, sha256: str) -> None:
        """Raise ConfigError for another model than the one that the fits were made with."""
        if sha256 != self.model_sha256:
            names = ", ".join(self.prompts)
            raise ConfigError(
                f"calibration: {self.path}: the fits of prompts {names} were made with the model of sha256 "
                f"{short(self.model_sha256)}, this one is {short(sha256)}: {_AGAIN}"
            )


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


def _of_labels(value: Any) -> Any:
    if not isinstance(value, dict):
        raise refusal("expected a number for each label")
    return {shown(label, quoted=False): number for label, number in value.items()}


def _of_prompts(value: Any, info: ValidationInfo) -> Any:
    """The fits, all of them of prompts that the configuration has."""
    if not isinstance(value, dict) or not value:
        raise refusal("expected at least one prompt's name with its fit")
    known: Sequence[str] = (info.context or {})["names"]
    for name in value:
        if name not in known:
            text = shown(name, quoted=False)
            raise refusal(f"is no prompt of the configuration, {hint(name, known)}", text)
    return {name: given(fit) for name, fit in value.items()}


@settings
class _Fit(Settings):
    """What the file says of a prompt; `fit`, how it was fitted, is for people."""

    prompt_hash: Annotated[str, Text()]
    scoring: Scoring
    temperature: Annotated[float, Number(MIN_TEMPERATURE, MAX_TEMPERATURE)]
    bias: Annotated[dict[str, _BiasNumber], BeforeValidator(_of_labels)] | None = None
    fit: Any


@settings
class _File(Settings):
    """A calibration file."""

    model_sha256: Annotated[str, Text()]
    prompts: Annotated[dict[str, _Fit], BeforeValidator(_of_prompts)]


def read_calibration(config: Config) -> Calibration | None:
    """The calibration file of a configuration, where it names one. Raises ConfigError, with a line for each mistake."""
    path = config.calibration
    if path is None:
        return None
    try:
        text = load_yaml(read_text(path, "the file"))
        if not isinstance(text.values, dict):
            raise ConfigError("is no calibration: expected model_sha256 and prompts")
        return _calibration(text, path, {prompt.name: prompt for prompt in config.prompts})
    except ConfigError as e:
        raise prefixed(f"calibration: {path}", e) from None


def _calibration(text: YamlText, path: Path, prompts: Mapping[str, PromptConfig]) -> Calibration:
    try:
        file = check(_File, given(text.values), names=list(prompts))
    except ValidationError as e:
        raise config_error(mistakes(e, _File), text.values, file=text) from None
    wrong: list[Mistake] = []
    fits = {}
    for name, fit in file.prompts.items():
        if found := [*_mismatches(fit, prompts[name])]:
            wrong += [Mistake(("prompts", name, *where), what) for where, what in found]
        else:
            bias = fit.bias and tuple(fit.bias[label] for label in prompts[name].labels)
            fits[name] = PromptCalibration(temperature=fit.temperature, bias=bias or None)
    if wrong:
        raise config_error(wrong, text.values, file=text)
    return Calibration(path=path, model_sha256=file.model_sha256, prompts=fits)


def _mismatches(fit: _Fit, prompt: PromptConfig) -> Iterator[Mistake]:
    """Why a fit is not for the prompt of its name."""
    if prompt.temperature is not None:
        yield Mistake(
            (),
            f"the configuration gives this prompt temperature {prompt.temperature:g} as well: "
            "remove it, or this prompt from the calibration",
        )
    if fit.scoring != prompt.scoring:
        yield Mistake((), f"was fitted to scoring {fit.scoring}, the prompt has {prompt.scoring}: {_AGAIN}")
    elif fit.prompt_hash != (now := prompt_hash(prompt)):
        yield Mistake(
            (),
            f"was fitted to the prompt of hash {short(fit.prompt_hash)}, it is {short(now)} now "
            f"(template, labels, scoring, prior): {_AGAIN}",
        )
    elif fit.bias is not None:
        for label in prompt.labels:
            if label not in fit.bias:
                yield Mistake(("bias", label), "is missing")
        for label in fit.bias:
            if label not in prompt.labels:
                yield Mistake(("bias", label), f"unknown key, {hint(label, prompt.labels)}")


def calibration_text(model_sha256: str, prompts: Mapping[str, JsonObject]) -> str:
    """The YAML text of a calibration; prompts: each one's entry, in order."""
    tree = {"model_sha256": model_sha256, "prompts": dict(prompts)}
    head = "# Written by `qcls-gguf calibrate`; it holds for this model and these prompts only.\n"
    return head + yaml.safe_dump(tree, allow_unicode=True, sort_keys=False)
