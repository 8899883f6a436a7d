"""The record of a calibration: what `qcls-gguf calibrate` prints as JSON."""

from __future__ import annotations

from ..config.likely_mistake import LikelyMistake
from ..config.prompt import Prior
from ..config.scoring import Scoring
from ..evaluation.records import DataRecord
from ..report.record import Record, left_out_if_none
from ..score.result import ModelInfo


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
    bias: dict[str, float] | None = left_out_if_none()
    """by label, added to the divided scores; only where biases were fitted"""
    n_rows: int
    """rows that are labelled for the prompt"""
    n_folds: int
    """of the cross-validation"""
    log_loss: LogLoss
    ece: CalibrationError


class CalibrationRecord(Record):
    """Temperatures and biases fitted to labelled queries."""

    data: DataRecord
    model: ModelInfo
    warnings: tuple[LikelyMistake, ...]
    """what is likely a mistake in the prompts"""
    written: str | None
    """the calibration file; null where no fit was kept"""
    with_bias: bool
    """whether biases were fitted"""
    seed: int
    """of the shuffle into folds"""
    prompts: dict[str, FitRecord]
    """by prompt"""
