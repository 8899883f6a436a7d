"""Statements about answers to unseen queries, from labelled rows that are exchangeable with them.

These are an error rate among answered queries and an agreement with other answers, with a confidence over the draw of
the rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from . import BoolArray, FloatArray, binomial_cdf

MOST_STEPS, ROWS_A_STEP = 10, 50
"""thresholds that are tried: one for so many rows, at most so many"""
_MOST_ROWS = 1_000_000
_MOST_PROPOSED, _DIGITS = 100, 6  # thresholds of an agreement, with so many digits


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
    not grow with the threshold; simulations in tests/unit/test_stated.py have others, too.
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


def p_value_of_error(n_wrong: int, n_answered: int, target: float) -> float:
    """P(X >= n_wrong), X ~ Bin(n_answered, target): how likely so many errors are if the error is the target."""
    return 1.0 - binomial_cdf(n_wrong - 1, n_answered, target)
