"""Heads in closed form, and their evaluation. Pure numpy.

With y (n, n_labels) the one-hot labels of n rows and p the softmax of base log-odds, a ridge regression of y - p on the
standardised states x gives f; the head's log-odds are base + gain · f. A head that stands alone has the labels'
frequencies as its base; one beside the labels' texts has a · s + b with s their scores, so that few rows change little.
All rows are left out one by one: with H the hat matrix and h its diagonal, f without row i is t_i - (t_i - f_i) / (1 -
h_i). Penalty and gain are those of the least log-loss of these, and of several candidates the cheapest is taken whose
loss is within one standard error of the least. As all these choices see all rows, what is reported of a head is of
folds that took no part in them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..config.heads_file import Head
from ..score.heads import head_scores
from ..statistics import log_softmax

FloatArray = npt.NDArray[np.floating[Any]]
IntArray = npt.NDArray[np.intp]

PENALTIES = tuple(10.0**e for e in np.arange(-3, 2.1, 0.5))
"""of the ridge, where a standardised state has a mean square length of 1"""
GAINS = tuple(2.0**e for e in np.arange(-1, 7.1, 0.5))
N_FOLDS = 5
SIGNIFICANT = 0.05
NONE = np.empty(0, np.intp)
_MOST_BIASES = 200
"""With more labels their scores get one scale, and no bias for each."""
_LEAST_SCALE = 0.01


class HeadFit(NamedTuple):
    """A candidate fitted to some rows."""

    head: Head
    losses: FloatArray
    """(n,) log-loss of each row by the fit without it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """The states, and perhaps scores, that a head may use."""

    depth: int
    states: FloatArray
    """(n, n_embd) unit states"""
    text: str | None = None
    """the text that is read instead of the prompt's own"""
    scores: FloatArray | None = None
    """(n, n_labels) the prompt's own scores, if the head stands beside them"""

    def rows(self, index: IntArray) -> Candidate:
        """The same for some rows."""
        scores = None if self.scores is None else self.scores[index]
        return Candidate(depth=self.depth, states=self.states[index], text=self.text, scores=scores)

    def fit(self, label: IntArray, n_labels: int, unlearnt: IntArray = NONE) -> HeadFit:
        """The head with the least leave-one-out log-loss; label: (n,).

        unlearnt: labels without rows, which keep the scores of their texts, multiplied by the common scale.
        """
        if len(unlearnt):
            assert self.scores is not None
            learnt = np.setdiff1d(np.arange(n_labels), unlearnt)
            among = replace(self, scores=self.scores[:, learnt]).fit(np.searchsorted(learnt, label), len(learnt))
            weight, bias = np.zeros((self.states.shape[1], n_labels), np.float32), np.zeros(n_labels, np.float32)
            weight[:, learnt], bias[learnt] = among.head.weight, among.head.bias
            return HeadFit(replace(among.head, weight=weight, bias=bias), among.losses)
        target = np.eye(n_labels)[label]
        if self.scores is None:
            scale, shift = 0.0, np.log((target.sum(axis=0) + 1) / (len(label) + n_labels))
            base = np.broadcast_to(shift, target.shape)
        else:
            scale, shift = fit_scores(self.scores, label)
            base = scale * self.scores + shift
        target = target - np.exp(log_softmax(base))
        ridge = Ridge(self.states)
        best: tuple[float, float, float, FloatArray] | None = None
        for penalty in PENALTIES:
            left_out = ridge.left_out(target, penalty)
            for gain in GAINS:
                losses = _losses(base + gain * left_out, label)
                if best is None or losses.mean() < best[0]:
                    best = (float(losses.mean()), penalty, gain, losses)
        assert best is not None
        _, penalty, gain, losses = best
        weight, bias = ridge.weights(target, penalty)
        head = Head(
            depth=self.depth,
            weight=(gain * weight).astype(np.float32),
            bias=(shift + gain * bias).astype(np.float32),
            scale=scale,
            text=self.text,
        )
        return HeadFit(head, losses)


class Ridge:
    """Ridge regressions on standardised states, with an intercept that is not penalised, for any penalty."""

    def __init__(self, states: FloatArray) -> None:
        """states: (n, n_embd)."""
        x = states.astype(np.float64)
        self._mean = x.mean(axis=0)
        spread = x.std(axis=0)
        # a number that hardly varies in these rows is not blown up
        self._scale = np.maximum(spread, 1e-3 * spread.mean() + 1e-9) * math.sqrt(x.shape[1])
        self._x = x = (x - self._mean) / self._scale
        n, n_embd = x.shape
        squares, vectors = np.linalg.eigh(x @ x.T if n <= n_embd else x.T @ x)
        kept = squares > 1e-10 * squares[-1]
        self._squares = squares[kept]
        self._u = vectors[:, kept] if n <= n_embd else x @ vectors[:, kept] / np.sqrt(self._squares)

    def _fitted(self, centred: FloatArray, penalty: float) -> FloatArray:
        return np.asarray(self._u @ (self._share(penalty)[:, None] * (self._u.T @ centred)))

    def _share(self, penalty: float) -> FloatArray:
        return np.asarray(self._squares / (self._squares + penalty))

    def left_out(self, target: FloatArray, penalty: float) -> FloatArray:
        """(n, n_targets) for each row the prediction of the regression without that row."""
        mean = target.mean(axis=0)
        fitted = mean + self._fitted(target - mean, penalty)
        leverage = np.minimum(1 / len(target) + np.square(self._u) @ self._share(penalty), 1 - 1e-6)
        return np.asarray(target - (target - fitted) / (1 - leverage)[:, None])

    def weights(self, target: FloatArray, penalty: float) -> tuple[FloatArray, FloatArray]:
        """((n_embd, n_targets), (n_targets,)) weights and intercepts for states that are not standardised."""
        mean = target.mean(axis=0)
        dual = (target - mean - self._fitted(target - mean, penalty)) / penalty
        weight = self._x.T @ dual / self._scale[:, None]
        return weight, mean - self._mean @ weight


def fit_scores(scores: FloatArray, label: IntArray) -> tuple[float, FloatArray]:
    """(scale, (n_labels,) biases) of the least log-loss of scale · scores + biases, by Newton's method.

    Normal priors hold the scale near 1 and the biases near 0 where rows are few.
    """
    n_labels = scores.shape[1]
    n_biases = n_labels if n_labels <= _MOST_BIASES else 0
    own = scores.astype(np.float64) - scores.max(axis=1, keepdims=True)
    target = np.eye(n_labels)[label]
    start = np.zeros(1 + n_biases)
    start[0] = 1
    at = start.copy()

    def log_odds(x: FloatArray) -> FloatArray:
        return np.asarray(x[0] * own + (x[1:] if n_biases else 0))

    def loss(x: FloatArray) -> float:
        return float(_losses(log_odds(x), label).sum() + np.square(x - start).sum() / 2)

    for _ in range(30):
        p = np.exp(log_softmax(log_odds(at)))
        slope = p - target
        gradient = np.append((slope * own).sum(), slope.sum(axis=0)[:n_biases]) + at - start
        mean = (p * own).sum(axis=1, keepdims=True)
        hessian = np.eye(1 + n_biases)
        hessian[0, 0] += (p * np.square(own - mean)).sum()
        if n_biases:
            hessian[0, 1:] = hessian[1:, 0] = (p * (own - mean)).sum(axis=0)
            hessian[1:, 1:] += np.diag(p.sum(axis=0)) - p.T @ p
        step = np.linalg.solve(hessian, gradient)
        size = 1.0
        while size > 1e-4 and loss(at - size * step) > loss(at):
            size /= 2
        at = at - size * step
        if np.abs(step).max() < 1e-6:
            break
    return max(float(at[0]), _LEAST_SCALE), at[1:] if n_biases else np.zeros(n_labels)


def choose(candidates: Sequence[Candidate], label: IntArray, n_labels: int, unlearnt: IntArray = NONE) -> HeadFit:
    """The first candidate, cheapest first, whose log-loss is within one standard error of the least; label: (n,)."""
    fitted = [each.fit(label, n_labels, unlearnt) for each in candidates]
    best = min(fitted, key=lambda each: float(each.losses.mean()))
    for each in fitted:
        more = each.losses - best.losses
        if more.mean() <= more.std(ddof=1) / math.sqrt(len(more)):
            return each
    return best


def held_out(
    candidates: Sequence[Candidate], label: IntArray, n_labels: int, seed: int = 0, every: int = 1
) -> FloatArray:
    """(n, n_labels) log-probabilities of each row by a head that was chosen and fitted without the row's fold.

    every: of the other folds only every so many-th row of each label is learnt from.
    """
    found = np.empty((len(label), n_labels))
    unlearnt = np.setdiff1d(np.arange(n_labels), label)
    for fold in folds(label, seed):
        others = _by_label(label, np.setdiff1d(np.arange(len(label)), fold), seed)[::every]
        head = choose([each.rows(others) for each in candidates], label[others], n_labels, unlearnt).head
        (read,) = [each for each in candidates if _is_of(head, each)]
        own = np.zeros((len(fold), n_labels)) if read.scores is None else read.scores[fold]
        found[fold] = head_scores(head, read.states[fold].astype(np.float32), own.astype(np.float32))
    return found


def _is_of(head: Head, candidate: Candidate) -> bool:
    same_text = head.text == candidate.text and head.depth == candidate.depth
    return same_text and head.reads_labels == (candidate.scores is not None)


def folds(label: IntArray, seed: int = 0) -> list[IntArray]:
    """The rows of each of N_FOLDS folds, over which each label is spread; label: (n,)."""
    by_label = _by_label(label, np.arange(len(label)), seed)
    return [by_label[first::N_FOLDS] for first in range(N_FOLDS)]


def _by_label(label: IntArray, rows: IntArray, seed: int) -> IntArray:
    """Rows in the order of their labels, those of a label mixed."""
    mixed = np.random.default_rng(seed).permutation(rows)
    return mixed[np.argsort(label[mixed], kind="stable")]


def sign_test(n_better: int, n_worse: int) -> float:
    """The probability of at least n_better heads in n_better + n_worse coin tosses.

    The tosses are the rows that only one of two methods answers correctly."""
    n = n_better + n_worse
    return float(sum(math.comb(n, k) for k in range(n_better, n + 1)) / 2**n)


def _losses(log_odds: FloatArray, label: IntArray) -> FloatArray:
    return np.asarray(-log_softmax(log_odds)[np.arange(len(label)), label])
