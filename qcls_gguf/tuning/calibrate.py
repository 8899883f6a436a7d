"""From labelled data to a calibration file: one pass, then for each prompt a fit and its verdict. Needs scipy."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..config.calibration_file import calibration_text, prompt_hash
from ..config.prompt import PromptConfig
from ..config.schema import Config
from ..config.words import hint
from ..data.labelled import PLAIN_COLUMNS, Labelled, LabelledColumns
from ..errors import ConfigError, ScoreError
from ..evaluation.evaluate import EvaluationSettings, ScoredRows, score_data
from ..evaluation.modes import non_finite_rows
from ..evaluation.passes import truth_of
from ..opening import ClassifierOpener
from ..report.files import check_writable
from ..report.progress import OnProgress
from ..score.adjustment import Adjustment, FloatArray
from ..statistics import BoolArray
from .fit import Verdict, check_n_rows, cross_validate
from .records import CalibrationError, CalibrationRecord, FitRecord, LogLoss

_DIGITS = 6
"""Decimals of what is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSettings:
    """What is fitted, to which data, and where the fits are written."""

    config: Config
    data: Path
    """labelled queries, see read_labelled"""
    out: Path
    """the calibration file"""
    names: tuple[str, ...] = ()
    """prompts to fit; empty: all"""
    columns: LabelledColumns = PLAIN_COLUMNS
    """which columns of the data are read"""
    with_bias: bool = False
    n_folds: int = 5
    seed: int = 0
    """of the shuffle into folds"""
    force: bool = False
    """overwrite a file that is at `out`"""
    skip_bad: bool = False
    """leave out rows that cannot be used, instead of refusing them"""
    resume: Path | None = None
    """a file that keeps each row's scores, so that an interrupted pass goes on from there"""


def calibrate(
    settings: FitSettings,
    opener: ClassifierOpener,
    *,
    on_progress: OnProgress = lambda part, done, total: None,
) -> tuple[CalibrationRecord, str | None]:
    """Fit, and return the record that `qcls-gguf calibrate` prints as JSON, and the calibration file's text.

    The text has the fits that were accepted, and is None where there are none. Nothing is written. Raises ConfigError
    for what cannot be fitted or written, before anything is computed; and what Classifier raises.
    """
    prompts = _prompts_to_fit(settings.config, settings.names)
    inputs = {"`data`": settings.data, "the configuration": settings.config.path, "`resume`": settings.resume}
    check_writable(settings.out, "`out`", inputs, force=settings.force)
    settings = dataclasses.replace(settings, config=opener.rendered(settings.config))
    prompts = _prompts_to_fit(settings.config, settings.names)
    evaluation = EvaluationSettings(
        config=dataclasses.replace(settings.config, calibration=None),  # the one that this replaces
        path=settings.data,
        columns=settings.columns,
        modes=tuple(dict.fromkeys(prompt.scoring for prompt in prompts)),
        skip_bad=settings.skip_bad,
        resume=settings.resume,
    )
    check = partial(_check_rows, settings, prompts)
    scored = score_data(evaluation, opener, check=check, on_progress=on_progress)
    if lost := non_finite_rows(scored.rows, scored.scores):
        lines = ", ".join(str(row.line) for row in lost)
        raise ScoreError(f"`data` {settings.data}: scores that are not finite: lines {lines}: leave these rows out")
    verdicts: dict[str, Verdict] = {}
    for prompt, adjustment in zip(settings.config.prompts, scored.adjustments, strict=True):
        if prompt in prompts:
            verdicts[prompt.name] = _verdict(settings, prompt, scored, adjustment)
            on_progress("fit", len(verdicts), len(prompts))
    entries = {p.name: _file_entry(p, verdicts[p.name]) for p in prompts if verdicts[p.name].accepted}
    record = CalibrationRecord(
        data=scored.data_record(),
        model=scored.model,
        warnings=opener.warnings,
        written=str(settings.out) if entries else None,
        with_bias=settings.with_bias,
        seed=settings.seed,
        prompts={prompt.name: _fit_record(prompt, verdicts[prompt.name]) for prompt in prompts},
    )
    return record, calibration_text(scored.model.sha256, entries) if entries else None


def _prompts_to_fit(config: Config, names: Sequence[str]) -> list[PromptConfig]:
    """The named prompts, or all where none is named. Raises ConfigError for an unknown name or a given temperature."""
    known = [prompt.name for prompt in config.prompts]
    for name in names:
        if name not in known:
            raise ConfigError(f"`prompt` {name}: is no prompt of the configuration, {hint(name, known)}")
    chosen = [prompt for prompt in config.prompts if not names or prompt.name in names]
    for prompt in chosen:
        if prompt.temperature is not None:
            raise ConfigError(
                f"prompts.{prompt.name}.temperature: {prompt.temperature:g} is given, and calibrate fits one: remove it"
            )
    return chosen


def _check_rows(settings: FitSettings, prompts: Sequence[PromptConfig], data: Labelled) -> None:
    """Raise ConfigError for too few rows, before the model is loaded."""
    for prompt in prompts:
        check_n_rows(sum(prompt.name in row.labels for row in data.rows), settings.n_folds, _place(settings, prompt))


def _verdict(settings: FitSettings, prompt: PromptConfig, scored: ScoredRows, adjustment: Adjustment) -> Verdict:
    score, accepted = _matrices(prompt, scored, adjustment)
    check_n_rows(len(score), settings.n_folds, _place(settings, prompt))
    return cross_validate(score, accepted, with_bias=settings.with_bias, n_folds=settings.n_folds, seed=settings.seed)


def _place(settings: FitSettings, prompt: PromptConfig) -> str:
    return f"`data` {settings.data}: prompt {prompt.name}"


def _matrices(prompt: PromptConfig, scored: ScoredRows, adjustment: Adjustment) -> tuple[FloatArray, BoolArray]:
    """Scores less the prior, and accepted labels, each (n_rows, n_labels), of the rows labelled for a prompt."""
    truth = truth_of(next(each for each in scored.prompts if each.name == prompt.name), scored.rows)
    score = scored.tables[prompt.name].by_scoring[prompt.scoring][truth.index]
    return score if adjustment.prior is None else score - adjustment.prior, truth.accepted


def _bias(prompt: PromptConfig, verdict: Verdict) -> dict[str, float] | None:
    """The biases by label, rounded; None where none were fitted."""
    if verdict.parameters.bias is None:
        return None
    biases = [round(bias, _DIGITS) for bias in verdict.parameters.bias.tolist()]
    return dict(zip(prompt.labels, biases, strict=True))


def _file_entry(prompt: PromptConfig, verdict: Verdict) -> dict[str, Any]:
    """A prompt's entry in the calibration file."""
    bias = _bias(prompt, verdict)
    return {
        "prompt_hash": prompt_hash(prompt),
        "scoring": prompt.scoring,
        "temperature": round(verdict.parameters.temperature, _DIGITS),
        **({} if bias is None else {"bias": bias}),
        "fit": {
            "n_rows": verdict.n_rows,
            "n_folds": verdict.n_folds,
            "log_loss_before": round(verdict.log_loss_before, _DIGITS),
            "log_loss_after": round(verdict.log_loss_after, _DIGITS),
            "standard_error": round(verdict.standard_error, _DIGITS),
        },
    }


def _fit_record(prompt: PromptConfig, verdict: Verdict) -> FitRecord:
    return FitRecord(
        scoring=prompt.scoring,
        prior=prompt.prior,
        accepted=verdict.accepted,
        temperature=round(verdict.parameters.temperature, _DIGITS),
        bias=_bias(prompt, verdict),
        n_rows=verdict.n_rows,
        n_folds=verdict.n_folds,
        log_loss=LogLoss(
            before=verdict.log_loss_before, after=verdict.log_loss_after, standard_error=verdict.standard_error
        ),
        ece=CalibrationError(before=verdict.ece_before, after=verdict.ece_after),
    )
