"""Temperature and biases from labelled scores, by held-out log-loss: numpy and scipy, no model.

With s a row's scores less the prior, A its accepted labels and p = softmax(s / T + b), the loss of a row is
-ln Σ_A p. The fit minimises

    mean of the rows' losses + ((ln T)² + Σ b²) / (2 n_rows)

over ln T in [ln 0.05, ln 20] and, where asked, b: the penalty is that of independent standard normal priors on all of
them. Without it a few rows that are all right would sharpen without end. It also makes Σ b = 0 at the minimum, for the
loss alone does not change when all biases grow alike.

Whether a fit is worth having is decided on rows that it has not seen: in K-fold cross-validation its mean loss has to
be lower than that of the uncalibrated scores by more than one standard error of the paired differences of the rows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ..errors import ConfigError
from ..report.record import Record
from ..score.adjustment import Adjustment, FloatArray, adjusted_scores, log_softmax, log_sum_exp
from ..statistics import BoolArray, calibration_error, paired_difference

LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 0.05, 20.0
N_ROWS_A_FOLD = 10
"""Fewer held-out rows say too little of a fit."""


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

    parameters: Adjustment
    """temperature and bias, no prior; biases, where they were fitted, have a sum of 0"""
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


def cross_validate(
    score: FloatArray, accepted: BoolArray, *, with_bias: bool, n_folds: int = 5, seed: int = 0
) -> Verdict:
    """Fit to all rows, and judge it by fits to all folds but one.

    score: (n_rows, n_labels) raw scores less the prior; accepted: (n_rows, n_labels), one label a row at least;
    see check_n_rows.
    """
    n = len(score)
    held_out = np.empty_like(score)
    for fold in np.array_split(np.random.default_rng(seed).permutation(n), n_folds):
        others = np.ones(n, np.bool_)
        others[fold] = False
        held_out[fold] = adjusted_scores(score[fold], fit(score[others], accepted[others], with_bias=with_bias))
    raw = log_softmax(score)
    before, after = log_losses(raw, accepted), log_losses(held_out, accepted)
    standard_error = paired_difference(before, after)[1]
    return Verdict(
        fit(score, accepted, with_bias=with_bias),
        LogLoss(before=float(before.mean()), after=float(after.mean()), standard_error=standard_error),
        CalibrationError(before=_ece(raw, accepted), after=_ece(held_out, accepted)),
    )


def fit(score: FloatArray, accepted: BoolArray, *, with_bias: bool) -> Adjustment:
    """The temperature, and biases with a sum of 0, that minimise the penalised log-loss of these rows."""
    from scipy.optimize import minimize  # an extra, and half a second

    n, n_labels = score.shape
    score = score - score.max(axis=1, keepdims=True)  # the loss is the same, the gradient more exact

    def loss(x: FloatArray) -> tuple[float, FloatArray]:
        scaled = score * math.exp(-x[0])
        log_p = log_softmax(scaled + x[1:] if with_bias else scaled)
        p = np.exp(log_p)
        log_accepted = log_sum_exp(np.where(accepted, log_p, -np.inf), axis=1)
        # d(row's loss) / d(what the softmax takes): p less p among the accepted labels alone
        slope = (p - np.where(accepted, np.exp(log_p - log_accepted[:, None]), 0)) / n
        by_bias = slope.sum(axis=0) if with_bias else ()
        return float(x @ x / (2 * n) - log_accepted.mean()), np.array([-(slope * scaled).sum(), *by_bias]) + x / n

    bounds = [(math.log(LOWEST_TEMPERATURE), math.log(HIGHEST_TEMPERATURE))] + [(None, None)] * n_labels * with_bias
    log_temperature, *biases = minimize(loss, np.zeros(len(bounds)), jac=True, bounds=bounds, method="L-BFGS-B").x
    bias = np.array(biases) - np.mean(biases) if with_bias else None
    return Adjustment(temperature=math.exp(log_temperature), bias=bias)


def log_losses(log_p: FloatArray, accepted: BoolArray) -> FloatArray:
    """(n_rows,) the loss of each row, in nats."""
    return np.asarray(0 - log_sum_exp(np.where(accepted, log_p, -np.inf), axis=1))


def _ece(log_p: FloatArray, accepted: BoolArray) -> float:
    answer = log_p.argmax(axis=1)[:, None]
    confidence = np.exp(np.take_along_axis(log_p, answer, 1)[:, 0], dtype=np.float64)
    right = np.take_along_axis(accepted, answer, 1)[:, 0]
    return calibration_error(confidence, right) or 0.0  # None without rows
