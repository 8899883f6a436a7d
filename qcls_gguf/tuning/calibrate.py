"""From labelled data to a calibration file: one pass, a fit for each prompt, and a verdict on each. Needs scipy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..config.calibration_file import calibration_text, prompt_hash
from ..config.schema import Config, PromptConfig
from ..config.words import hint
from ..data.labelled import Labelled
from ..errors import ConfigError, ScoreError
from ..evaluation.modes import non_finite_rows
from ..evaluation.record import Evaluation, ScoredRows, score_data
from ..report.files import check_writable
from ..report.progress import OnProgress
from ..score.adjustment import Adjustment, FloatArray
from .fit import BoolArray, Verdict, check_n_rows, cross_validate

_DIGITS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrating:
    """What is to be fitted, and where to."""

    config: Config
    data: Path
    """labelled queries, see read_labelled"""
    out: Path
    names: tuple[str, ...] = ()
    """the prompts; none: all"""
    with_bias: bool = False
    n_folds: int = 5
    seed: int = 0
    force: bool = False
    """overwrite what is at out"""
    skip_bad: bool = False
    resume: Path | None = None
    offline: bool = False


def calibrate(
    wanted: Calibrating,
    *,
    on_step: Callable[[str, str, float], None] | None = None,
    on_load: Callable[[float], None] | None = None,
    on_progress: OnProgress = lambda part, done, total: None,
) -> dict[str, Any]:
    """Fit, and write the fits that were accepted; the record is what `qcls-gguf calibrate` prints as JSON.

    Raises ConfigError for what cannot be fitted or written, before anything is computed; and what Classifier raises.
    """
    prompts = _chosen(wanted)
    inputs = {"`data`": wanted.data, "the configuration": wanted.config.path, "`resume`": wanted.resume}
    check_writable(wanted.out, "`out`", inputs, force=wanted.force)
    evaluation = Evaluation(
        config=dataclasses.replace(wanted.config, calibration=None),  # the one that this replaces
        path=wanted.data,
        modes=tuple(dict.fromkeys(prompt.scoring for prompt in prompts)),
        skip_bad=wanted.skip_bad,
        resume=wanted.resume,
        offline=wanted.offline,
    )
    found = score_data(
        evaluation,
        check=partial(_check_rows, wanted, prompts),
        on_step=on_step,
        on_load=on_load,
        on_progress=on_progress,
    )
    if lost := non_finite_rows(found.rows, found.scores):
        lines = ", ".join(str(row["line"]) for row in lost)
        raise ScoreError(f"`data` {wanted.data}: scores that are not finite: lines {lines}: leave these rows out")
    verdicts: dict[str, Verdict] = {}
    for prompt, adjustment in zip(wanted.config.prompts, found.adjustments, strict=True):
        if prompt in prompts:
            verdicts[prompt.name] = _verdict(wanted, prompt, found, adjustment)
            on_progress("fit", len(verdicts), len(prompts))
    entries = {p.name: _entry(p, verdicts[p.name]) for p in prompts if verdicts[p.name].accepted}
    if entries:
        wanted.out.write_text(calibration_text(found.model.sha256, entries), encoding="utf-8")
    return {
        "data": found.record(),
        "model": dataclasses.asdict(found.model),
        "written": str(wanted.out) if entries else None,
        "with_bias": wanted.with_bias,
        "seed": wanted.seed,
        "prompts": {prompt.name: _record(prompt, verdicts[prompt.name]) for prompt in prompts},
    }


def _chosen(wanted: Calibrating) -> list[PromptConfig]:
    known = [prompt.name for prompt in wanted.config.prompts]
    for name in wanted.names:
        if name not in known:
            raise ConfigError(f"`prompt` {name}: is no prompt of the configuration, {hint(name, known)}")
    chosen = [prompt for prompt in wanted.config.prompts if not wanted.names or prompt.name in wanted.names]
    for prompt in chosen:
        if prompt.temperature is not None:
            raise ConfigError(
                f"prompts.{prompt.name}.temperature: {prompt.temperature:g} is given, and calibrate fits one: remove it"
            )
    return chosen


def _check_rows(wanted: Calibrating, prompts: Sequence[PromptConfig], given: Labelled) -> None:
    """Refuse too few rows before the model is loaded."""
    for prompt in prompts:
        check_n_rows(sum(prompt.name in row.labels for row in given.rows), wanted.n_folds, _place(wanted, prompt))


def _verdict(wanted: Calibrating, prompt: PromptConfig, found: ScoredRows, adjustment: Adjustment) -> Verdict:
    score, accepted = _matrices(prompt, found, adjustment)
    check_n_rows(len(score), wanted.n_folds, _place(wanted, prompt))
    return cross_validate(score, accepted, with_bias=wanted.with_bias, n_folds=wanted.n_folds, seed=wanted.seed)


def _place(wanted: Calibrating, prompt: PromptConfig) -> str:
    return f"`data` {wanted.data}: prompt {prompt.name}"


def _matrices(prompt: PromptConfig, found: ScoredRows, adjustment: Adjustment) -> tuple[FloatArray, BoolArray]:
    """(n_rows, n_labels) scores less the prior, and which labels are accepted, of the rows labelled for a prompt."""
    prior = 0.0 if adjustment.prior is None else adjustment.prior
    score, accepted = [], []
    for row, scores in zip(found.rows, found.scores, strict=True):
        if prompt.name in row.labels and scores.prompts is not None:
            score.append(scores.prompts[prompt.name].scores(prompt.scoring) - prior)
            accepted.append([label in row.labels[prompt.name] for label in prompt.labels])
    shape = (-1, len(prompt.labels))
    return np.array(score, np.float64).reshape(shape), np.array(accepted, np.bool_).reshape(shape)


def _parameters(prompt: PromptConfig, verdict: Verdict) -> dict[str, Any]:
    found: dict[str, Any] = {"temperature": round(verdict.parameters.temperature, _DIGITS)}
    if verdict.parameters.bias is not None:
        bias = [round(number, _DIGITS) for number in verdict.parameters.bias.tolist()]
        found["bias"] = dict(zip(prompt.labels, bias, strict=True))
    return found


def _entry(prompt: PromptConfig, verdict: Verdict) -> dict[str, Any]:
    """What the calibration file says of a prompt."""
    return {
        "prompt_hash": prompt_hash(prompt),
        "scoring": prompt.scoring,
        **_parameters(prompt, verdict),
        "fit": {
            "n_rows": verdict.n_rows,
            "n_folds": verdict.n_folds,
            "log_loss_before": round(verdict.log_loss_before, _DIGITS),
            "log_loss_after": round(verdict.log_loss_after, _DIGITS),
            "standard_error": round(verdict.standard_error, _DIGITS),
        },
    }


def _record(prompt: PromptConfig, verdict: Verdict) -> dict[str, Any]:
    """What JSON says of a prompt."""
    return {
        "scoring": prompt.scoring,
        "prior": prompt.prior,
        "accepted": verdict.accepted,
        **_parameters(prompt, verdict),
        "n_rows": verdict.n_rows,
        "n_folds": verdict.n_folds,
        "log_loss": {
            "before": verdict.log_loss_before,
            "after": verdict.log_loss_after,
            "standard_error": verdict.standard_error,
        },
        "ece": {"before": verdict.ece_before, "after": verdict.ece_after},
    }
