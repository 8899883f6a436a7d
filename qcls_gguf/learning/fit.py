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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ..config.fitted import Head
from ..score.rows import head_scores
from ..statistics import AnyFloats, IntArray, log_softmax

PENALTIES = tuple(10.0**e for e in np.arange(-3, 2.1, 0.5))
"""of the ridge, where a standardised state has a mean square length of 1"""
GAINS = tuple(2.0**e for e in np.arange(-1, 7.1, 0.5))
N_FOLDS = 5
SIGNIFICANT = 0.05
NO_LABELS = np.empty(0, np.intp)
_MOST_BIASES = 200
"""With more labels their scores get one scale, and no biases."""
_LEAST_SCALE = 0.01
_MOST_NUMBERS = 1 << 22
"""of states in float64 that are in memory at a time"""


class HeadFit(NamedTuple):
    """A candidate fitted to some rows."""

    head: Head
    losses: AnyFloats
    """(n,) log-losses of the rows, each by the fit without it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """The states, and perhaps scores, that a head may use."""

    depth: int
    states: AnyFloats
    """(n_all, n_embd) unit states; read a part at a time, so that they may lie in a file"""
    text: str | None = None
    """the text that is read instead of the prompt's own"""
    scores: AnyFloats | None = None
    """(n_all, n_labels) the prompt's own scores, if the head stands beside them"""
    index: IntArray
    """(n,) the rows of both that are fitted"""

    def rows(self, index: IntArray) -> Candidate:
        """The same for some of its rows."""
        return replace(self, index=self.index[index])

    def is_read_by(self, head: Head) -> bool:
        """Whether the head was fitted to this."""
        return (head.text, head.depth, head.reads_labels) == (self.text, self.depth, self.scores is not None)

    def log_p(self, head: Head) -> AnyFloats:
        """(n, n_labels) log-probabilities of the rows by a head that reads this."""
        parts = []
        for rows in np.array_split(self.index, 1 + self.states.shape[1] * len(self.index) // _MOST_NUMBERS):
            scores = np.zeros((len(rows), len(head.bias))) if self.scores is None else self.scores[rows]
            parts.append(head_scores(head, self.states[rows].astype(np.float32), scores.astype(np.float32)))
        return np.concatenate(parts)

    def fit(self, label: IntArray, n_labels: int, unlearnt: IntArray = NO_LABELS) -> HeadFit:
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
            scores = self.scores[self.index]
            scale, shift = fit_scores(scores, label)
            base = scale * scores + shift
        ridge = Ridge(self.states, self.index, target - np.exp(log_softmax(base)))
        total = np.zeros((len(PENALTIES), len(GAINS)))
        for part, by_penalty in ridge.left_out(PENALTIES):
            for place, left_out in enumerate(by_penalty):
                total[place] += [_losses(base[part] + gain * left_out, label[part]).sum() for gain in GAINS]
        least, at = np.unravel_index(total.argmin(), total.shape)
        penalty, gain = PENALTIES[least], GAINS[at]
        losses = [_losses(base[part] + gain * left_out, label[part]) for part, (left_out,) in ridge.left_out([penalty])]
        weight, bias = ridge.weights(penalty)
        head = Head(
            depth=self.depth,
            weight=(gain * weight).astype(np.float32),
            bias=(shift + gain * bias).astype(np.float32),
            scale=scale,
            text=self.text,
        )
        return HeadFit(head, np.concatenate(losses))


class Ridge:
    """Ridge regressions on standardised states, with an intercept that is not penalised, for any penalty.

    With x the standardised states, x = u · s · vᵀ their singular values, and z = x · v, all that is computed is of sums
    over rows and of z, part by part: memory does not grow with the rows.
    """

    def __init__(self, states: AnyFloats, index: IntArray, target: AnyFloats) -> None:
        """states: (n_all, n_embd), of which the rows `index` (n,) count; target: (n, n_targets)."""
        self._states, self._index, self._target = states, index, target
        n, n_embd = len(index), states.shape[1]
        self._mean, self._scale = np.zeros(n_embd), np.ones(n_embd)
        self._mean = sum(x.sum(axis=0) for _, x in self._parts()) / n
        spread = np.sqrt(sum(np.square(x).sum(axis=0) for _, x in self._parts()) / n)
        # a number that hardly varies in these rows is not blown up
        self._scale = np.maximum(spread, 1e-3 * spread.mean() + 1e-9) * math.sqrt(n_embd)
        if n <= n_embd:
            x = np.concatenate([x for _, x in self._parts()])
            squares, vectors = np.linalg.eigh(x @ x.T)
        else:
            squares, vectors = np.linalg.eigh(sum(x.T @ x for _, x in self._parts()))
        kept = squares > 1e-10 * squares[-1]
        self._squares, vectors = squares[kept], vectors[:, kept]
        self._vectors = x.T @ vectors / np.sqrt(self._squares) if n <= n_embd else vectors
        self._intercept = target.mean(axis=0)
        self._along = self._vectors.T @ sum(x.T @ (target[part] - self._intercept) for part, x in self._parts())

    def _parts(self) -> Iterator[tuple[slice, AnyFloats]]:
        """Which of the n rows, and their standardised states."""
        size = max(1, _MOST_NUMBERS // max(self._states.shape[1], len(PENALTIES) * self._target.shape[1]))
        for start in range(0, len(self._index), size):
            part = slice(start, start + size)
            yield part, (self._states[self._index[part]].astype(np.float64) - self._mean) / self._scale

    def left_out(self, penalties: Sequence[float]) -> Iterator[tuple[slice, list[AnyFloats]]]:
        """Part by part which of the n rows, and by penalty (n_part, n_targets) their predictions, a row's by the
        regression without it.
        """
        for part, x in self._parts():
            z, target = x @ self._vectors, self._target[part]
            squares, by_penalty = np.square(z), []
            for penalty in penalties:
                share = 1 / (self._squares + penalty)
                fitted = self._intercept + z @ (share[:, None] * self._along)
                leverage = np.minimum(1 / len(self._index) + squares @ share, 1 - 1e-6)
                by_penalty.append(target - (target - fitted) / (1 - leverage)[:, None])
            yield part, by_penalty

    def weights(self, penalty: float) -> tuple[AnyFloats, AnyFloats]:
        """((n_embd, n_targets), (n_targets,)) weights and intercepts for states that are not standardised."""
        weight = self._vectors @ (self._along / (self._squares + penalty)[:, None]) / self._scale[:, None]
        return weight, self._intercept - self._mean @ weight


def fit_scores(scores: AnyFloats, label: IntArray) -> tuple[float, AnyFloats]:
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

    def log_odds(x: AnyFloats) -> AnyFloats:
        return np.asarray(x[0] * own + (x[1:] if n_biases else 0))

    def loss(x: AnyFloats) -> float:
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


def choose(candidates: Sequence[Candidate], label: IntArray, n_labels: int, unlearnt: IntArray = NO_LABELS) -> HeadFit:
    """The candidate that suffices; label: (n,)."""
    return cheapest([candidate.fit(label, n_labels, unlearnt) for candidate in candidates])


def cheapest(fitted: Sequence[HeadFit]) -> HeadFit:
    """The first, cheapest first, whose log-loss is within one standard error of the least."""
    best = min(fitted, key=lambda fit: float(fit.losses.mean()))

    def suffices(fit: HeadFit) -> bool:
        excess = fit.losses - best.losses
        return bool(excess.mean() <= excess.std(ddof=1) / math.sqrt(len(excess)))

    return next(fit for fit in fitted if suffices(fit))


def held_out(
    candidates: Sequence[Candidate], label: IntArray, n_labels: int, seed: int = 0, every: int = 1
) -> AnyFloats:
    """(n, n_labels) log-probabilities of the rows, each by a head that was chosen and fitted without the row's fold.

    every: of the other folds only every so many-th row of a label is learnt from.
    """
    log_p = np.empty((len(label), n_labels))
    unlearnt = np.setdiff1d(np.arange(n_labels), label)
    for fold in folds(label, seed):
        others = np.sort(_by_label(label, np.setdiff1d(np.arange(len(label)), fold), seed)[::every])
        head = choose([candidate.rows(others) for candidate in candidates], label[others], n_labels, unlearnt).head
        (read,) = [candidate for candidate in candidates if candidate.is_read_by(head)]
        log_p[fold] = read.rows(fold).log_p(head)
    return log_p


def folds(label: IntArray, seed: int = 0) -> list[IntArray]:
    """The rows of N_FOLDS folds, over which the labels are spread; label: (n,)."""
    by_label = _by_label(label, np.arange(len(label)), seed)
    return [by_label[first::N_FOLDS] for first in range(N_FOLDS)]


def _by_label(label: IntArray, rows: IntArray, seed: int) -> IntArray:
    """Rows in the order of their labels, those of a label mixed."""
    mixed = np.random.default_rng(seed).permutation(rows)
    return mixed[np.argsort(label[mixed], kind="stable")]


def _losses(log_odds: AnyFloats, label: IntArray) -> AnyFloats:
    return np.asarray(-log_softmax(log_odds)[np.arange(len(label)), label])
