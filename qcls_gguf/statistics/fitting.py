"""What labelled rows fit and state: temperatures, by held-out log-loss, and thresholds that keep an error rate.

With s a row's scores less the prior, A its accepted labels and p = softmax(s / T), the loss of a row is -ln Σ_A p. The
fit of a temperature minimises

    mean of the rows' losses + (ln T)² / (2 n_rows)

over ln T in [ln 0.05, ln 20]: the penalty is that of a standard normal prior. Without it a few rows that are all right
would sharpen without end. Whether a fit is worth having is decided on rows that it has not seen: in K-fold
cross-validation its mean loss has to be lower than that of the uncalibrated scores by more than one standard error of
the paired differences of the rows.

A threshold is stated of rows that are exchangeable with the queries to come, with a confidence over the draw of the
rows.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from . import (
    AnyFloats,
    BoolArray,
    FloatArray,
    binomial_cdf,
    calibration_error,
    log_softmax,
    log_sum_exp,
    paired_difference,
)
from .logistic import N_FOLDS

LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 0.05, 20.0
_N_HALVINGS = 40
MOST_STEPS, ROWS_A_STEP = 10, 50
"""thresholds that are tried: one for so many rows, at most so many"""
_MOST_ROWS = 1_000_000


class Verdict(NamedTuple):
    """A fit to all rows, and what cross-validation says of such fits.

    `before`: of the uncalibrated scores; `after`: of rows by the fit to the other folds; means over the rows.
    """

    temperature: float
    log_loss_before: float
    log_loss_after: float
    standard_error: float
    """of the mean of the losses' differences"""
    ece_before: float
    ece_after: float

    @property
    def accepted(self) -> bool:
        """Whether the fit lowers the held-out log-loss by more than one standard error."""
        return self.log_loss_before - self.log_loss_after > self.standard_error


def cross_validate(score: AnyFloats, accepted: BoolArray) -> Verdict:
    """Fit to all rows, and judge it by fits to all folds but one.

    score: (n_rows, n_labels) raw scores less the prior; accepted: (n_rows, n_labels), one label a row at least.
    """
    n = len(score)
    held_out = np.empty_like(score)
    for fold in np.array_split(np.random.default_rng(0).permutation(n), N_FOLDS):
        others = np.ones(n, np.bool_)
        others[fold] = False
        held_out[fold] = log_softmax(score[fold] / fit(score[others], accepted[others]))
    raw = log_softmax(score)
    before, after = losses(raw, accepted), losses(held_out, accepted)
    return Verdict(
        fit(score, accepted),
        float(before.mean()),
        float(after.mean()),
        paired_difference(before, after)[1],
        _ece(raw, accepted),
        _ece(held_out, accepted),
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
    """(n_rows,) the losses of the rows, in nats."""
    return np.asarray(0 - log_sum_exp(np.where(accepted, log_p, -np.inf), axis=1))


def _ece(log_p: AnyFloats, accepted: BoolArray) -> float:
    answer = log_p.argmax(axis=1)[:, None]
    confidence = np.exp(np.take_along_axis(log_p, answer, 1)[:, 0], dtype=np.float64)
    right = np.take_along_axis(accepted, answer, 1)[:, 0]
    return calibration_error(confidence, right) or 0.0  # None without rows


class Step(NamedTuple):
    """One threshold that was tried."""

    threshold: float
    """answers with at least this probability count; 0: all"""
    n_answered: int
    n_wrong: int
    accepted: bool


def error_thresholds(sureness: FloatArray, wrong: BoolArray, target: float, confidence: float) -> list[Step]:
    """Thresholds from the strictest to the loosest; the error of the last accepted one is at most the target.

    sureness: (n,) the answers' probabilities; wrong: (n,). The k surest rows are tried for up to MOST_STEPS numbers k.
    Given the k+1st row's sureness t, the rows above t are draws from all queries above it, so that the p-value of
    "their error is larger than the target" is P(X <= n_wrong), X ~ Bin(n_answered, target): Clopper and Pearson 1934.
    The search is paid for by the fallback procedure (Wiens 2003), a fixed sequence in which each hypothesis has its
    share of 1 - confidence and inherits that of those accepted directly before it: a case of "learn then test"
    (Angelopoulos et al. 2021). The claim is then wrong with probability at most 1 - confidence where the error does
    not grow with the threshold; simulations in tests/unit/test_learning_fit.py have others, too.
    """
    n, order = len(sureness), np.argsort(-sureness, kind="stable")
    sureness, n_wrong = sureness[order], np.append(0, np.cumsum(wrong[order]))
    counts, share = _counts(n, target, confidence)
    steps, level = [], 0.0
    for k in counts:
        threshold = float(np.nextafter(sureness[k], 2)) if k < n else 0.0
        n_answered = int((sureness >= threshold).sum())  # fewer than k where some are as sure as the next one
        level += share
        accepted = n_answered > 0 and binomial_cdf(int(n_wrong[n_answered]), n_answered, target) <= level
        level = level if accepted else 0.0
        steps.append(Step(threshold, n_answered, int(n_wrong[n_answered]), accepted))
    return steps


def _counts(n: int, target: float, confidence: float) -> tuple[list[int], float]:
    """How many of the surest of n rows are tried, and the share of 1 - confidence that each try has."""
    n_steps = min(max(n // ROWS_A_STEP, 2), MOST_STEPS)
    share = (1 - confidence) / n_steps
    least = math.ceil(math.log(share) / math.log1p(-target))  # of which not one may be wrong
    return sorted(set(np.linspace(least, n, n_steps).astype(int).tolist())) if n >= least else [], share


def rows_needed(n: int, steps: Sequence[Step], target: float, confidence: float) -> int | None:
    """About how many rows a threshold needs to be accepted, if errors stay as frequent as in the steps tried.

    n: rows now. Without steps, what rows that are all right need; None if no step has fewer errors than the target.
    """
    found = []
    for step in steps or [Step(0.0, 1, 0, False)]:
        error, part = step.n_wrong / max(step.n_answered, 1), step.n_answered / n if steps else 1.0
        low, high = 1, _MOST_ROWS
        if error >= target or not step.n_answered:
            continue
        while low < high:  # the answered rows, of which the first test of so many has its share alone
            k = (low + high) // 2
            share = _counts(math.ceil(k / part), target, confidence)[1]
            low, high = (low, k) if binomial_cdf(int(error * k), k, target) <= share else (k + 1, high)
        found.append(math.ceil(low / part))
    return min(found, default=None)


def shares_of_labels(p: FloatArray, prior: FloatArray) -> FloatArray:
    """(n_labels,) the shares that labels have among rows, by a fit to rows in which their shares are `prior`.

    p: (n, n_labels) the fit's probabilities. Expectation maximisation: Saerens, Latinne and Decaestecker 2002.
    """
    found = prior
    for _ in range(_N_HALVINGS):
        odds = p * (found / prior)
        found = (odds / odds.sum(axis=1, keepdims=True)).mean(axis=0)
    return found
