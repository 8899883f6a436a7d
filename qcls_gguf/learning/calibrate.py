"""From labelled data to a calibration file: one pass, then for each prompt a fit and its verdict."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..config.calibration_file import PromptCalibration, calibration_text, prompt_hash
from ..config.heads_file import headed
from ..config.prompt import Prior, PromptConfig
from ..config.schema import Config, chosen_prompts
from ..config.scoring import Scoring
from ..data.labelled import PLAIN_COLUMNS, LabelledColumns, LabelledQuery
from ..errors import ConfigError, ScoreError
from ..evaluation.evaluate import EvaluationSettings, score_data
from ..evaluation.passes import truth_of
from ..evaluation.records import FittedRecord
from ..opening import ClassifierOpener
from ..report.document import TEXT, Document, Table
from ..report.files import check_writable
from ..report.record import Record
from ..statistics.temperature import cross_validate

N_ROWS_A_FOLD = 10
"""Fewer held-out rows say too little of a fit."""
_DIGITS = 6
"""Decimals of what is written."""


class LogLoss(Record):
    """Mean log-loss over the rows, in nats."""

    before: float
    """of the uncalibrated scores"""
    after: float
    """of each row by the fit to the other folds"""
    standard_error: float
    """of the mean of before - after"""


class CalibrationError(Record):
    """Expected calibration error over 15 bins."""

    before: float
    """of the uncalibrated scores"""
    after: float
    """of each row by the fit to the other folds"""


class FitRecord(Record):
    """The fit of one prompt, and whether it was kept."""

    scoring: Scoring
    """as configured"""
    prior: Prior
    """as configured"""
    accepted: bool
    """whether it lowers the log-loss of rows it has not seen by more than one standard error"""
    temperature: float
    """what the scores are divided by"""
    n_rows: int
    """rows that are labelled for the prompt"""
    n_folds: int
    """of the cross-validation"""
    log_loss: LogLoss
    ece: CalibrationError


class CalibrationRecord(FittedRecord):
    """Temperatures fitted to labelled queries."""

    seed: int
    """of the shuffle into folds"""
    prompts: dict[str, FitRecord]
    """by prompt"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSettings:
    """The data, the prompts and the output of what is fitted to labelled queries."""

    config: Config
    data: Path
    """labelled queries, see read_labelled"""
    out: Path
    """the file that is to be written"""
    names: tuple[str, ...] = ()
    """prompts to fit; empty: all"""
    columns: LabelledColumns = PLAIN_COLUMNS
    """which columns of the data are read"""
    force: bool = False
    """overwrite a file that is at `out`"""
    skip_bad: bool = False
    """leave out rows that cannot be used, instead of refusing them"""

    def check(self) -> None:
        """Raise ConfigError for names that no prompt has, and for an output that cannot be written."""
        chosen_prompts(self.config, self.names)
        inputs = {"`data`": self.data, "the configuration": self.config.path}
        check_writable(self.out, "`out`", inputs, force=self.force)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationSettings(FitSettings):
    """The same for a calibration."""

    n_folds: int = 5
    seed: int = 0
    """of the shuffle into folds"""


def calibrate(settings: CalibrationSettings, opener: ClassifierOpener) -> tuple[CalibrationRecord, str | None]:
    """Fit, and return the record that `qcls-gguf calibrate` prints as JSON, and the calibration file's text.

    The text has the fits that were accepted, and is None where there are none. Nothing is written. Raises ConfigError
    for what cannot be fitted or written, before anything is computed; and what Classifier raises.
    """
    prompts_to_fit(settings.config, settings.names)
    settings.check()
    settings = dataclasses.replace(settings, config=opener.rendered(settings.config))
    prompts = prompts_to_fit(settings.config, settings.names)
    evaluation = EvaluationSettings(
        config=settings.config.changed(calibration=None),  # the one that this replaces
        path=settings.data,
        columns=settings.columns,
        modes=tuple(dict.fromkeys(prompt.scoring for prompt in prompts)),
        skip_bad=settings.skip_bad,
    )
    scored = score_data(evaluation, opener, check=lambda data: _check_rows(settings, prompts, data.rows))
    if scored.non_finite:
        lines = ", ".join(str(row.line) for row in scored.non_finite)
        raise ScoreError(f"`data` {settings.data}: scores that are not finite: lines {lines}: leave these rows out")
    _check_rows(settings, prompts, scored.rows)  # again: the model may have refused some
    fits: dict[str, FitRecord] = {}
    for prompt in opener.each("fit", prompts):
        index = settings.config.prompts.index(prompt)
        truth, adjustment = truth_of(scored.prompts[index], scored.rows), scored.adjustments[index]
        score = scored.tables[prompt.name].by_scoring[prompt.scoring][truth.index]
        verdict = cross_validate(
            score if adjustment.prior is None else score - adjustment.prior,
            truth.accepted,
            n_folds=settings.n_folds,
            seed=settings.seed,
        )
        fits[prompt.name] = FitRecord(
            scoring=prompt.scoring,
            prior=prompt.prior,
            accepted=verdict.accepted,
            temperature=round(verdict.temperature, _DIGITS),
            n_rows=len(score),
            n_folds=settings.n_folds,
            log_loss=LogLoss(**verdict.log_loss._asdict(), standard_error=verdict.standard_error),
            ece=CalibrationError(**verdict.ece._asdict()),
        )
    entries = {prompt.name: _in_file(prompt, fits[prompt.name]) for prompt in prompts if fits[prompt.name].accepted}
    record = CalibrationRecord(
        data=scored.data,
        model=scored.model,
        warnings=opener.warnings,
        written=str(settings.out) if entries else None,
        seed=settings.seed,
        prompts=fits,
    )
    return record, calibration_text(scored.model.sha256, entries) if entries else None


def prompts_to_fit(config: Config, names: Sequence[str]) -> list[PromptConfig]:
    """The named prompts, or all without a head where none is named.

    Raises ConfigError for an unknown name, a prompt with a head and a given temperature.
    """
    heads = headed(config)
    chosen = [each for each in chosen_prompts(config, names) if names or each.name not in heads]
    fitted = sorted(heads) if not chosen else [prompt.name for prompt in chosen if prompt.name in heads]
    if fitted:
        raise ConfigError(
            f"prompts.{fitted[0]}: has a head, which learn has calibrated: name prompts without one, or fit the "
            "labels' texts of a configuration without `heads`"
        )
    for prompt in chosen:
        if prompt.temperature is not None:
            raise ConfigError(
                f"prompts.{prompt.name}.temperature: {prompt.temperature:g} is given, and calibrate fits one: remove it"
            )
    return chosen


def _check_rows(settings: CalibrationSettings, prompts: Sequence[PromptConfig], rows: Sequence[LabelledQuery]) -> None:
    """Raise ConfigError for too few rows, before the model is loaded."""
    n_folds = settings.n_folds
    for prompt in prompts:
        n_rows = sum(prompt.name in row.labels for row in rows)
        if n_rows < n_folds * N_ROWS_A_FOLD:
            raise ConfigError(
                f"`data` {settings.data}: prompt {prompt.name}: has {n_rows} labelled rows, {n_folds} folds need "
                f"{n_folds * N_ROWS_A_FOLD}: label more, lower `n_folds`, or name the prompts to fit with `prompt`"
            )


def _in_file(prompt: PromptConfig, fit: FitRecord) -> PromptCalibration:
    """What the calibration file says of a prompt."""
    loss = fit.log_loss
    numbers = {"log_loss_before": loss.before, "log_loss_after": loss.after, "standard_error": loss.standard_error}
    rounded = {name: round(number, _DIGITS) for name, number in numbers.items()}
    return PromptCalibration(
        prompt_hash=prompt_hash(prompt),
        scoring=fit.scoring,
        temperature=fit.temperature,
        fit={"n_rows": fit.n_rows, "n_folds": fit.n_folds, **rounded},
    )


def calibration_document(record: CalibrationRecord) -> Document:
    """A row for each prompt: its log-loss and ECE before and on held-out rows, its temperature, and the verdict."""
    rows = []
    for name, fit in record.prompts.items():
        loss, ece = fit.log_loss, fit.ece
        verdict = (
            f"{'kept' if fit.accepted else 'refused'}: {loss.before - loss.after:+.4f} ± {loss.standard_error:.4f}"
        )
        rows.append([name, fit.n_rows, loss.before, loss.after, ece.before, ece.after, fit.temperature, verdict])
    columns = {
        "prompt": TEXT, "rows": "d", "log-loss": ".4f", "log-loss held out": ".4f", "ECE": ".4f", "ECE held out": ".4f",
        "temperature": ".3f", "verdict": ">",
    }  # fmt: skip
    return Document(title="Calibration", parts=[Table(columns=columns, rows=rows)])
