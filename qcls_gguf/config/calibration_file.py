"""Calibration files: YAML with what `qcls-gguf calibrate` fitted; written, read and checked against a configuration.

A file contains the model's sha256, and every fit a hash of everything else that a prompt's scores depend on, so that a
fit is never applied to other scores.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeAlias

import yaml
from pydantic import Field

from ..errors import ConfigError, prefixed
from .prompt import PromptConfig, Temperature
from .schema import Config, short, stage_hash
from .scoring import Scoring
from .settings import Count, Mistake, Settings, Share, Size, Text, VisibleText, config_error, settings_in_file
from .words import JsonObject, digest_of
from .yaml_values import load_yaml, read_text

_AGAIN = "run `qcls-gguf calibrate` again"
_LARGEST_BIAS = 1000.0
_BiasNumber: TypeAlias = Annotated[float, Field(strict=True, ge=-_LARGEST_BIAS, le=_LARGEST_BIAS)]


class StatedError(Settings):
    """The error rate that a threshold keeps among answered queries."""

    target: Share = Field(description="the error is at most this")
    confidence: Share = Field(description="with at least this probability over the draw of the rows")
    threshold: Share = Field(description="answers with at least this probability count")
    fallback: VisibleText = Field(description="the answer to all other queries")
    n_rows: Count = Field(description="rows by which the threshold was chosen")
    n_answered: Count = Field(description="how many of them it answers")
    n_wrong: Size = Field(description="of these, those with a wrong answer")


class StatementSource(Settings):
    """The labelled rows that statements stand on."""

    data: Text = Field(description="the file's name")
    data_sha256: Text
    date: Text = Field(description="when the statements were made")
    package_version: Text
    n_rows: Count = Field(description="rows that were used")
    n_duplicates: Size = Field(description="rows whose query came before")
    queries: Text = Field(description="digests of their queries")


_DIGEST_BYTES = 6


def query_digests(queries: Iterable[str]) -> str:
    """Digests of distinct queries as text, for `StatementSource`."""
    return b64encode(b"".join(sorted({_digest(query) for query in queries}))).decode()


def _digest(query: str) -> bytes:
    return hashlib.sha256(query.encode()).digest()[:_DIGEST_BYTES]


class PromptCalibration(Settings):
    """What a file says of one prompt."""

    prompt_hash: Text = Field(description="of the prompt that it was fitted to; see `prompt_hash`")
    scoring: Scoring
    temperature: Temperature | None = None
    bias: dict[str, _BiasNumber] | None = Field(default=None, description="by label")
    fit: Any = Field(default=None, description="how temperature and bias were fitted, for people")
    answers: Text | None = Field(default=None, description="hash of what gave the answers that are stated of")
    error: StatedError | None = None

    @property
    def fits_scores(self) -> bool:
        """Whether it changes probabilities."""
        return self.temperature is not None or self.bias is not None

    def biases(self, labels: Sequence[str]) -> list[float] | None:
        """The biases of labels in this order; None where there are none."""
        return None if self.bias is None else [self.bias[label] for label in labels]


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
    stated: StatementSource | None = None
    """only if it has statements"""

    def known(self, queries: Sequence[str]) -> list[bool]:
        """Which queries were among the rows that statements stand on."""
        packed = b64decode(self.stated.queries) if self.stated else b""
        digests = {packed[at : at + _DIGEST_BYTES] for at in range(0, len(packed), _DIGEST_BYTES)}
        return [_digest(query) in digests for query in queries]

    def applied(self, config: Config, head_digests: Mapping[str, str]) -> Config:
        """The configuration with the stated thresholds and fallbacks.

        head_digests: of the heads, by prompt. Raises ConfigError if the answers are not those of the statements.
        """
        prompts = []
        for prompt in config.prompts:
            fit = self.prompts.get(prompt.name)
            where = f"calibration: {self.path}: prompts.{prompt.name}"
            if fit and fit.answers not in (None, answers_hash(prompt, fit, head_digests.get(prompt.name))):
                what = "was stated of other answers (template, labels, scoring, prior, temperature, bias, head)"
                raise ConfigError(f"{where}: {what}: {_AGAIN}")
            if fit and fit.error and fit.error.threshold:
                if prompt.min_confidence not in (None, fit.error.threshold):
                    what = "has a threshold, and the configuration min_confidence: remove one"
                    raise ConfigError(f"{where}: {what}")
                prompt = prompt.changed(min_confidence=fit.error.threshold, fallback=fit.error.fallback)
            prompts.append(prompt)
        return config.changed(prompts=tuple(prompts))


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
    return digest_of(parts)


def answers_hash(prompt: PromptConfig, fit: PromptCalibration | None, head_digest: str | None) -> str:
    """A digest of everything but the model that a prompt's probabilities depend on."""
    temperature = prompt.temperature or (fit and fit.temperature) or 1.0
    return stage_hash(head_digest or prompt_hash(prompt), temperature, fit.biases(prompt.labels) if fit else None)


class _File(Settings):
    """A calibration file."""

    model_sha256: Text
    prompts: Annotated[dict[str, PromptCalibration], Field(min_length=1)]
    stated: StatementSource | None = None


def read_calibration(config: Config) -> Calibration | None:
    """The calibration file that a configuration names. Raises ConfigError, with a line for every mistake."""
    path = config.calibration
    if path is None:
        return None
    prompts = {prompt.name: prompt for prompt in config.prompts}
    with prefixed(f"calibration: {path}"):
        text = load_yaml(read_text(path, "the file"))
        file = settings_in_file(_File, text)
        found = {name: _mismatch(fit, prompts.get(name), list(prompts)) for name, fit in file.prompts.items()}
        if wrong := [Mistake(("prompts", name), what) for name, what in found.items() if what]:
            raise config_error(wrong, text.values, file=text)
    return Calibration(path=path, model_sha256=file.model_sha256, prompts=file.prompts, stated=file.stated)


def _mismatch(fit: PromptCalibration, prompt: PromptConfig | None, names: Sequence[str]) -> str | None:
    """Why a fit is not for the prompt of its name."""
    if prompt is None:
        return f"is no prompt of the configuration, which has {', '.join(names)}"
    if prompt.temperature is not None and fit.temperature is not None:
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


def calibration_text(
    model_sha256: str, prompts: Mapping[str, PromptCalibration], stated: StatementSource | None = None
) -> str:
    """The YAML text of a calibration; prompts: by name, in order."""
    tree: JsonObject = {
        "model_sha256": model_sha256,
        "prompts": {name: fit.model_dump(exclude_none=True) for name, fit in prompts.items()},
    }
    if stated is not None:
        tree["stated"] = stated.model_dump(exclude_none=True)
    head = "# Written by `qcls-gguf calibrate`; it holds for this model and these prompts only.\n"
    return head + yaml.safe_dump(tree, allow_unicode=True, sort_keys=False)
