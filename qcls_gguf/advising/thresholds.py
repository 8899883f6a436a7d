"""From which probability on a stage's answer may stand for the last stage's, with a guarantee on queries not yet seen.

With A the wanted agreement and δ = 1 - confidence: answers of at least a threshold t count, and cost agreement where
they differ from the last stage's. The first half of the queries only proposes thresholds: those of its answers, the
highest first, as long as its own agreement is at least A. The second half decides: one after the other is accepted
while the upper Clopper-Pearson bound, at level δ, of the share of queries that would be answered otherwise is at most
1 - A; the first that fails ends it. Since the order does not depend on the second half, the chance that the threshold
that is taken has a lower true agreement than A is at most δ (a fixed sequence of tests).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..statistics import BoolArray, FloatArray, upper_bound

_MOST_STEPS = 100
"""Thresholds that are proposed."""
_DIGITS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """What was found for one prompt."""

    threshold: float | None
    """None where no threshold keeps the agreement"""
    n: int
    """queries of the second half"""
    n_answered: int
    """of these, those that the stage answers"""
    n_other: int
    """of these, those whose answer is not the last stage's"""
    least_agreement: float
    """the lower Clopper-Pearson bound of the agreement on unseen queries; 0 without a threshold"""


def n_needed(agreement: float, confidence: float) -> int:
    """Queries of the second half without which no threshold can be proven, whatever the answers are."""
    return math.ceil(math.log(1 - confidence) / math.log(agreement))


def fit_threshold(
    probability: FloatArray, differs: BoolArray, n_first: int, agreement: float, confidence: float
) -> Threshold:
    """The lowest threshold that is proven.

    probability: (n,) of the stage's answers; differs: (n,) whether these are not the last stage's; n_first: queries of
    the first half; agreement: below 1.
    """
    first, second = probability[n_first:], differs[n_first:]
    found = Threshold(threshold=None, n=len(first), n_answered=0, n_other=0, least_agreement=0.0)
    for threshold in proposed_thresholds(probability[:n_first], differs[:n_first], agreement):
        answered = first >= threshold
        n_other = int((answered & second).sum())
        bound = upper_bound(n_other, len(first), confidence)
        if bound > 1 - agreement:
            break
        found = Threshold(
            threshold=threshold,
            n=len(first),
            n_answered=int(answered.sum()),
            n_other=n_other,
            least_agreement=1 - bound,
        )
    return found


def proposed_thresholds(probability: FloatArray, differs: BoolArray, agreement: float) -> list[float]:
    """Thresholds, the highest first, by which the first half itself keeps the agreement."""
    order = np.argsort(-probability, kind="stable")
    n_other = np.cumsum(differs[order])
    kept = int((n_other <= (1 - agreement) * len(order)).sum())
    chosen = np.unique(np.linspace(0, kept - 1, _MOST_STEPS).astype(int)).tolist() if kept else []
    # rounded up: no query counts that the exact value would not let count
    steps = [math.ceil(probability[order[index]] * 10**_DIGITS) / 10**_DIGITS for index in chosen]
    return list(dict.fromkeys(min(step, 1.0) for step in steps))
