"""Temperatures from labelled scores, by held-out log-loss: numpy, no model.

With s a row's scores less the prior, A its accepted labels and p = softmax(s / T), the loss of a row is -ln Σ_A p. The
fit minimises

    mean of the rows' losses + (ln T)² / (2 n_rows)

over ln T in [ln 0.05, ln 20]: the penalty is that of a standard normal prior. Without it a few rows that are all right
would sharpen without end.

Whether a fit is worth having is decided on rows that it has not seen: in K-fold cross-validation its mean loss has to
be lower than that of the uncalibrated scores by more than one standard error of the paired differences of the rows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ..errors import ConfigError
from ..report.record import Record
from ..score.adjustment import FloatArray, log_softmax, log_sum_exp
from ..statistics import BoolArray, calibration_error, paired_difference

LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 0.05, 20.0
N_ROWS_A_FOLD = 10
"""Fewer held-out rows say too little of a fit."""
_N_HALVINGS = 40


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


class Verdict(NamedTuple):
    """A fit to all rows, and what cross-validation says of such fits."""

    temperature: float
    log_loss: LogLoss
    ece: CalibrationError

    @property
    def accepted(self) -> bool:
        """Whether the fit lowers the held-out log-loss by more than one standard error."""
        return self.log_loss.before - self.log_loss.after > self.log_loss.standard_error


def check_n_rows(n_rows: int, n_folds: int, where: str) -> None:
    """Raise ConfigError, which names `where`, for fewer rows than the folds need."""
    if n_rows < n_folds * N_ROWS_A_FOLD:
        raise ConfigError(
            f"{where}: has {n_rows} labelled rows, {n_folds} folds need {n_folds * N_ROWS_A_FOLD}: "
            "label more, lower `n_folds`, or name the prompts to fit with `prompt`"
        )


def cross_validate(score: FloatArray, accepted: BoolArray, *, n_folds: int = 5, seed: int = 0) -> Verdict:
    """Fit to all rows, and judge it by fits to all folds but one.

    score: (n_rows, n_labels) raw scores less the prior; accepted: (n_rows, n_labels), one label a row at least;
    see check_n_rows.
    """
    n = len(score)
    held_out = np.empty_like(score)
    for fold in np.array_split(np.random.default_rng(seed).permutation(n), n_folds):
        others = np.ones(n, np.bool_)
        others[fold] = False
        held_out[fold] = log_softmax(score[fold] / fit(score[others], accepted[others]))
    raw = log_softmax(score)
    before, after = log_losses(raw, accepted), log_losses(held_out, accepted)
    standard_error = paired_difference(before, after)[1]
    return Verdict(
        fit(score, accepted),
        LogLoss(before=float(before.mean()), after=float(after.mean()), standard_error=standard_error),
        CalibrationError(before=_ece(raw, accepted), after=_ece(held_out, accepted)),
    )


def fit(score: FloatArray, accepted: BoolArray) -> float:
    """The temperature that minimises the penalised log-loss of these rows, by halving its interval."""
    low, high = math.log(LOWEST_TEMPERATURE), math.log(HIGHEST_TEMPERATURE)
    score = score - score.max(axis=1, keepdims=True)  # the loss is the same, the slope more exact
    for _ in range(_N_HALVINGS):
        middle = (low + high) / 2
        scaled = score * math.exp(-middle)
        log_p = log_softmax(scaled)
        log_accepted = log_sum_exp(np.where(accepted, log_p, -np.inf), axis=1)
        # d(row's loss) / d(what the softmax takes): p less p among the accepted labels alone
        slope = np.exp(log_p) - np.where(accepted, np.exp(log_p - log_accepted[:, None]), 0)
        if middle > (slope * scaled).sum():
            high = middle
        else:
            low = middle
    return math.exp((low + high) / 2)


def log_losses(log_p: FloatArray, accepted: BoolArray) -> FloatArray:
    """(n_rows,) the loss of each row, in nats."""
    return np.asarray(0 - log_sum_exp(np.where(accepted, log_p, -np.inf), axis=1))


def _ece(log_p: FloatArray, accepted: BoolArray) -> float:
    answer = log_p.argmax(axis=1)[:, None]
    confidence = np.exp(np.take_along_axis(log_p, answer, 1)[:, 0], dtype=np.float64)
    right = np.take_along_axis(accepted, answer, 1)[:, 0]
    return calibration_error(confidence, right) or 0.0  # None without rows
