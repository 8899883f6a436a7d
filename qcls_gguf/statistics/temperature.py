"""Temperatures from labelled scores, by held-out log-loss.

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

from . import AnyFloats, BoolArray, FloatArray, calibration_error, log_softmax, log_sum_exp, paired_difference

LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 0.05, 20.0
_N_HALVINGS = 40


class BeforeAfter(NamedTuple):
    """A mean over the rows."""

    before: float
    """of the uncalibrated scores"""
    after: float
    """of each row by the fit to the other folds"""


class Verdict(NamedTuple):
    """A fit to all rows, and what cross-validation says of such fits."""

    temperature: float
    log_loss: BeforeAfter
    standard_error: float
    """of the mean of the losses' differences"""
    ece: BeforeAfter

    @property
    def accepted(self) -> bool:
        """Whether the fit lowers the held-out log-loss by more than one standard error."""
        return self.log_loss.before - self.log_loss.after > self.standard_error


def cross_validate(score: AnyFloats, accepted: BoolArray, *, n_folds: int = 5, seed: int = 0) -> Verdict:
    """Fit to all rows, and judge it by fits to all folds but one.

    score: (n_rows, n_labels) raw scores less the prior; accepted: (n_rows, n_labels), one label a row at least.
    """
    n = len(score)
    held_out = np.empty_like(score)
    for fold in np.array_split(np.random.default_rng(seed).permutation(n), n_folds):
        others = np.ones(n, np.bool_)
        others[fold] = False
        held_out[fold] = log_softmax(score[fold] / fit(score[others], accepted[others]))
    raw = log_softmax(score)
    before, after = losses(raw, accepted), losses(held_out, accepted)
    return Verdict(
        fit(score, accepted),
        BeforeAfter(float(before.mean()), float(after.mean())),
        paired_difference(before, after)[1],
        BeforeAfter(_ece(raw, accepted), _ece(held_out, accepted)),
    )


def fit(score: AnyFloats, accepted: BoolArray) -> float:
    """The temperature that minimises the penalised log-loss, by bisection; score, accepted: (n_rows, n_labels)."""
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


def losses(log_p: AnyFloats, accepted: BoolArray) -> FloatArray:
    """(n_rows,) the loss of each row, in nats."""
    return np.asarray(0 - log_sum_exp(np.where(accepted, log_p, -np.inf), axis=1))


def _ece(log_p: AnyFloats, accepted: BoolArray) -> float:
    answer = log_p.argmax(axis=1)[:, None]
    confidence = np.exp(np.take_along_axis(log_p, answer, 1)[:, 0], dtype=np.float64)
    right = np.take_along_axis(accepted, answer, 1)[:, 0]
    return calibration_error(confidence, right) or 0.0  # None without rows
