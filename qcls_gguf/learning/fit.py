"""Heads by logistic regression on standardised states, and the choice between them. Pure numpy.

Penalty and candidate are those of the least log-loss of rows by the fit without their fold; of several candidates the
cheapest is taken whose loss is within one standard error of the least. What is reported of a fold's rows is by the
candidate that the other rows choose.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..config.fitted import Head
from ..statistics import AnyFloats, FloatArray, IntArray, log_softmax, softmax
from ..statistics.logistic import N_FOLDS, PENALTIES, CrossFit, cross_fit

SIGNIFICANT = 0.05
_MIXTURES = [((1 - share) * factor, share * factor) for share in (0, 0.2, 0.4, 0.6) for factor in (0.7, 1, 1.5, 2)]
"""factors of log-probabilities by states, and by words"""
_SHARE_STEPS = 0.5 / (1 + np.arange(100) / 20)
"""of `share_biases`: parts of the logarithm of what a label's share is to be, by what it is"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """The states, and perhaps scores, that a head may use."""

    depth: int
    states: AnyFloats
    """(n_all, n_embd) unit states; may lie in a file"""
    text: str | None = None
    """the text that is read instead of the prompt's own"""
    scores: FloatArray | None = None
    """(n_all, n_labels) the prompt's own scores, if the head stands beside them"""
    index: IntArray
    """(n,) the rows of both that are fitted"""

    def fit(
        self, target: FloatArray, fold: IntArray, penalties: Sequence[float] = PENALTIES, every: int = 1
    ) -> tuple[CrossFit, Head]:
        """The regression, see `cross_fit`, and its head; target: (n, n_labels)."""
        x = self.states[self.index].astype(np.float32)
        spread = x.std(axis=0)
        # a number that hardly varies in these rows is not blown up
        scale = np.maximum(spread, 1e-3 * spread.mean() + 1e-9) * np.float32(math.sqrt(x.shape[1]))
        base = None if self.scores is None else self.scores[self.index]
        found = cross_fit(x / scale, target, fold, penalties, base=base, every=every)
        return found, Head(
            depth=self.depth,
            weight=found.weight / scale[:, None],
            bias=found.bias,
            scale=float(base is not None),
            text=self.text,
        )

    def probabilities(self, head: Head, rows: IntArray) -> FloatArray:
        """(n, n_labels) of n rows, by a head of the candidate."""
        odds = self.states[rows].astype(np.float32) @ head.weight + head.bias
        return np.asarray(softmax(odds if self.scores is None else odds + self.scores[rows]), np.float64)


def cheapest(losses: Sequence[FloatArray], costs: Sequence[tuple[int, ...]] = ()) -> int:
    """The place of the lowest cost, and of several the least loss, among those whose mean loss is within one standard
    error of the least; without costs the first of these.
    """
    best = min(losses, key=lambda loss: float(loss.mean()))

    def suffices(loss: FloatArray) -> bool:
        excess = loss - best
        return bool(excess.mean() <= excess.std(ddof=1) / math.sqrt(len(excess)))

    places = [place for place, loss in enumerate(losses) if suffices(loss)]
    return min(places, key=lambda place: (costs[place], float(losses[place].mean()))) if costs else places[0]


def beside_words(
    log_p: FloatArray, head: Head, words: CrossFit, target: FloatArray, fold: IntArray
) -> tuple[FloatArray, Head]:
    """((n, n_labels) held-out log-probabilities by states and words together, the head of both).

    log_p, head: by states. Both are multiplied by factors of the least loss, that of words by 0 unless the loss is then
    more than one standard error higher; a fold's factors are those of the other rows.
    """

    def mixed(place: int) -> FloatArray:
        of_states, of_words = _MIXTURES[place]
        return np.asarray(log_softmax(of_states * log_p + of_words * words.log_p), np.float64)

    losses = [-(target * mixed(place)).sum(axis=1) for place in range(len(_MIXTURES))]
    costs = [(of_words > 0,) for _, of_words in _MIXTURES]
    of_states, of_words = _MIXTURES[cheapest(losses, costs)]
    both = replace(
        head,
        weight=of_states * head.weight,
        words=of_words * words.weight if of_words else None,
        bias=of_states * head.bias + of_words * words.bias,
        scale=of_states * head.scale,
    )
    return held_out(losses, mixed, fold, costs), both


def share_biases(log_p: FloatArray, answer: IntArray) -> FloatArray:
    """(n_labels,) what to add to log-probabilities so that labels win as often as in the answers (n,), or nearly.

    Fits to probabilities smooth them, so that a label which seldom wins, and never by much, would win less often still.
    """
    n, n_labels = log_p.shape
    wanted = np.bincount(answer, minlength=n_labels)
    bias = best = np.zeros(n_labels)
    least = n + 1
    for step in _SHARE_STEPS:
        found = np.bincount((log_p + bias).argmax(axis=1), minlength=n_labels)
        if (missed := int(np.abs(found - wanted).sum())) < least:
            least, best = missed, bias
        bias = bias + step * np.log((wanted + 1) / (found + 1))
    return best


def held_out(
    losses: Sequence[FloatArray], of: Callable[[int], FloatArray], fold: IntArray, costs: Sequence[tuple[int, ...]] = ()
) -> FloatArray:
    """(n, n_labels) log-probabilities of the rows, of each fold by the candidate that the other folds' losses choose.

    of: gives (n, n_labels) those of a candidate, by its place.
    """
    log_p = np.empty_like(of(0))
    for rows in (fold == k for k in range(N_FOLDS)):
        log_p[rows] = of(cheapest([loss[~rows] for loss in losses], costs))[rows]
    return log_p
