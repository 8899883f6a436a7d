"""What `qcls-gguf calibrate` fitted, in a YAML file: written, read and checked against a configuration.

Every fit is stamped with the model's sha256 and with a hash of everything else that a prompt's scores depend on, so
that a fit is never applied to scores that it was not made for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..errors import ConfigError
from .calibration_settings import MAX_TEMPERATURE, MIN_TEMPERATURE
from .schema import Config, PromptConfig
from .yaml_values import at, hint, load_yaml, mapping_of, number_of, required, text_of

_AGAIN = "run `qcls-gguf calibrate` again"
_N_SHOWN = 12
_LARGEST_BIAS = 1000.0


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
                f"{_short(self.model_sha256)}, this one is {_short(sha256)}: {_AGAIN}"
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


def read_calibration(config: Config) -> Calibration | None:
    """The calibration file of a configuration, where it names one. Raises ConfigError."""
    path = config.calibration
    if path is None:
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as e:
        raise ConfigError(f"calibration: {path}: cannot be read: {e.strerror}") from None
    except UnicodeDecodeError as e:
        raise ConfigError(f"calibration: {path}: is not valid UTF-8 at byte {e.start}") from None
    try:
        return _calibration(load_yaml(text), path, {prompt.name: prompt for prompt in config.prompts})
    except ConfigError as e:
        raise ConfigError(f"calibration: {path}: {e}") from None


def _calibration(tree: Any, path: Path, prompts: Mapping[str, PromptConfig]) -> Calibration:
    if not isinstance(tree, dict):
        raise ConfigError("is no calibration: expected model_sha256 and prompts")
    top = mapping_of(tree, "", {"model_sha256", "prompts"})
    sha256 = text_of(required(top, "", "model_sha256"), "model_sha256")
    entries = required(top, "", "prompts")
    if not isinstance(entries, dict) or not entries:
        raise ConfigError("prompts: expected at least one prompt's name with its fit")
    fits = {}
    for name, entry in entries.items():
        if name not in prompts:
            raise ConfigError(f"prompts.{name}: is no prompt of the configuration, {hint(name, list(prompts))}")
        fits[name] = _fit(entry, f"prompts.{name}", prompts[name])
    return Calibration(path=path, model_sha256=sha256, prompts=fits)


def _fit(tree: Any, where: str, prompt: PromptConfig) -> PromptCalibration:
    entry = mapping_of(tree, where, {"prompt_hash", "scoring", "temperature", "bias", "fit"})
    for key in ("prompt_hash", "scoring", "temperature", "fit"):
        required(entry, where, key)
    if prompt.temperature is not None:
        raise ConfigError(
            f"{where}: the configuration gives this prompt temperature {prompt.temperature:g} as well: "
            "remove it, or this prompt from the calibration"
        )
    if entry["scoring"] != prompt.scoring:
        raise ConfigError(
            f"{where}: was fitted to scoring {entry['scoring']}, the prompt has {prompt.scoring}: {_AGAIN}"
        )
    stamp, now = text_of(entry["prompt_hash"], at(where, "prompt_hash")), prompt_hash(prompt)
    if stamp != now:
        raise ConfigError(
            f"{where}: was fitted to the prompt of hash {_short(stamp)}, it is {_short(now)} now "
            f"(template, labels, scoring, prior): {_AGAIN}"
        )
    temperature = number_of(entry["temperature"], at(where, "temperature"), MIN_TEMPERATURE, MAX_TEMPERATURE)
    bias = None if entry.get("bias") is None else _bias(entry["bias"], at(where, "bias"), prompt.labels)
    return PromptCalibration(temperature=temperature, bias=bias)


def _bias(tree: Any, where: str, labels: tuple[str, ...]) -> tuple[float, ...]:
    if not isinstance(tree, dict):
        raise ConfigError(f"{where}: expected a number for each label")
    bias = mapping_of(tree, where, set(labels))
    return tuple(
        number_of(required(bias, where, label), at(where, label), -_LARGEST_BIAS, _LARGEST_BIAS) for label in labels
    )


def calibration_text(model_sha256: str, prompts: Mapping[str, dict[str, Any]]) -> str:
    """The YAML text of a calibration; prompts: each one's entry, in order."""
    tree = {"model_sha256": model_sha256, "prompts": dict(prompts)}
    head = "# Written by `qcls-gguf calibrate`; it holds for this model and these prompts only.\n"
    return head + yaml.safe_dump(tree, allow_unicode=True, sort_keys=False)


def _short(digest: str) -> str:
    return f"{digest[:_N_SHOWN]}…"
