"""Multinomial logistic regressions with an L2 penalty, cross-fitted; and the words of texts for them.

Pure numpy, in float32.
"""

import math
import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple
from unicodedata import normalize

import numpy as np

from . import AnyFloats, Float32Array, FloatArray, IntArray, log_softmax

PENALTIES = (0.3, 0.1, 0.03, 0.01, 0.003)
"""of the weights' squares, where rows have a mean square length of about 1"""
N_FOLDS = 5
_MEMORY = 10
_MOST_STEPS = 100
_LEAST_GAIN = 1e-4
"""of the loss, relative: about twice what is left to gain where the search ends"""
_SHORTEST, _MOST_ROTATED = 1e-6, 2048
"""part of a step; rows that are turned to their principal axes, where they are fewer than their numbers"""
_UNLEARNT = -30.0
"""log-odds"""
N_WORDS = 8192
"""columns that runs of characters are hashed to; files of heads rely on it, and on how"""
_FACTOR, _SPREAD, _SHIFT = np.uint32(16777619), np.uint32(2654435769), np.uint32(19)
"""of the hash of a run of characters, and of the column that it becomes"""
_MOST_CHARACTERS, _MOST_TEXTS, _MOST_SHARES, _WORD_PENALTY = 1024, 4000, 320_000, 0.3
"""of a text; texts, and their labels' shares, that a fit to words learns from; its penalty: rows have a mean square
length of about 15"""


class CrossFit(NamedTuple):
    """A regression of the penalty that is best on held-out rows."""

    log_p: FloatArray
    """(n, n_labels) log-probabilities of the rows of all folds, each by the fit without its fold"""
    losses: FloatArray
    """(n,) their log-losses"""
    penalty: float
    weight: Float32Array
    """(n_features, n_labels) of the fit to all rows"""
    bias: Float32Array
    """(n_labels,)"""


def cross_fit(
    x: Float32Array,
    target: AnyFloats,
    fold: IntArray,
    penalties: Sequence[float] = PENALTIES,
    *,
    base: AnyFloats | None = None,
    every: int = 1,
) -> CrossFit:
    """Fit to all rows and, at once, to all but each fold's.

    x: (n, n_features), whose mean is taken from it, in place; target: (n, n_labels) shares of the labels; fold: (n,) of
    the rows, below N_FOLDS, or -1: the last ones, which every fit learns from, and of which nothing is returned;
    base: (n, n_labels) log-odds that the fit is added to; every: of the other folds only every so many-th row is learnt
    from.
    Labels without any share get no weights, and keep their base; without one they are all but impossible.
    """
    mean, learnt = x.mean(axis=0), np.flatnonzero(target.any(axis=0))
    x -= mean
    z, slopes_of = _coordinates(x)
    shares, among = target[:, learnt].astype(np.float32), None if base is None else base[:, learnt]
    weight = np.ones((len(x), 1 + N_FOLDS), np.float32)
    weight[:, 1:] = (fold[:, None] != np.arange(N_FOLDS)) & ((np.arange(len(x)) % every == 0) | (fold < 0))[:, None]
    fits, found, n = [], None, int((fold >= 0).sum())
    for penalty in penalties:
        found = logistic(z, shares, weight, penalty, base=among, start=found)
        odds = _UNLEARNT * ~target.any(axis=0) + np.zeros(target.shape) if base is None else base.astype(np.float64)
        for k in range(N_FOLDS):
            odds[np.ix_(fold == k, learnt)] += z[fold == k] @ found[1:, 1 + k] + found[0, 1 + k]
        log_p = np.asarray(log_softmax(odds), np.float64)
        fits.append((log_p[:n], -(target * log_p).sum(axis=1)[:n], penalty, found[:, 0]))
    log_p, losses, penalty, whole = min(fits, key=lambda fit: float(fit[1].mean()))
    slopes, bias = np.zeros((x.shape[1], target.shape[1]), np.float32), np.zeros(target.shape[1], np.float32)
    slopes[:, learnt] = slopes_of(whole[1:])
    bias[learnt] = whole[0] - mean @ slopes[:, learnt]
    return CrossFit(log_p, losses, penalty, slopes, bias)


def folds(label: IntArray, queries: Sequence[str]) -> IntArray:
    """(n,) the folds of rows, over which the labels are spread; rows of one query are in one."""
    mixed = np.random.default_rng(0).permutation(len(label))
    fold = np.empty(len(label), np.intp)
    fold[mixed[np.argsort(label[mixed], kind="stable")]] = np.arange(len(label)) % N_FOLDS
    first = {query: row for row, query in reversed(list(enumerate(queries)))}
    return fold[[first[query] for query in queries]]


def _coordinates(x: Float32Array) -> tuple[Float32Array, Callable[[Float32Array], Float32Array]]:
    """(n, r) coordinates of n rows, r at most n; and what turns (r, n_labels) slopes along these into slopes along the
    features.

    With fewer rows than numbers regressions on the coordinates are smaller, and equal, as a penalty keeps weights among
    the rows: coordinates need only have the rows' products, of which a thousandth is added to a row's own. They are
    those along the principal axes, but of many rows Cholesky's factor, which takes half of the memory.
    """
    if x.shape[0] <= x.shape[1]:
        products = x @ x.T
        products[np.diag_indices(len(x))] += 1e-3 * np.diag(products) + _SHORTEST
        squares, axes = np.linalg.eigh(products) if len(x) <= _MOST_ROTATED else (1.0, np.linalg.cholesky(products))
        factor = axes * np.sqrt(squares, dtype=np.float32)
        return factor, lambda slopes: x.T @ np.linalg.solve(factor.T, slopes)
    axes = np.linalg.eigh(x.T @ x)[1]
    return np.ascontiguousarray(x @ axes), lambda slopes: axes @ slopes


def logistic(
    x: Float32Array,
    target: Float32Array,
    weight: Float32Array,
    penalty: float,
    *,
    base: AnyFloats | None = None,
    start: Float32Array | None = None,
) -> Float32Array:
    """(1 + n_features, n_fits, n_labels) intercepts and weights w, of every fit those of the least

        Σ over rows of weight · (-Σ over labels of target · log softmax(base + x @ w)) + penalty / 2 · |w|²

    by L-BFGS in coordinates in which the features are about equally curved; intercepts are not penalised.

    x: (n, n_features), best along principal axes; target: (n, n_labels); weight: (n, n_fits); base: (n, n_labels);
    start: an earlier solution.
    """
    (n, n_labels), n_fits = target.shape, weight.shape[1]
    curvature = np.append(n, np.square(x).sum(axis=0)) / n_labels + penalty
    scale = (1 / np.sqrt(curvature)).astype(np.float32)[:, None]
    held = np.float32(penalty) * np.square(scale)
    held[0] = 0
    scaled = x * scale[1:, 0]
    offset = None if base is None else base.astype(np.float32)[:, None]

    def loss(w: Float32Array) -> tuple[float, Float32Array]:
        odds = (scaled @ w[1:] + scale[0] * w[0]).reshape(n, n_fits, n_labels)
        log_p = log_softmax(odds if offset is None else odds + offset)
        cost = -np.einsum("nl,nfl,nf->", target, log_p, weight, dtype=np.float64)
        slope = ((np.exp(log_p) - target[:, None]) * weight[:, :, None]).reshape(n, -1)
        gradient = np.concatenate([scale[0] * slope.sum(axis=0, keepdims=True), scaled.T @ slope]) + held * w
        return float(cost + (held * np.square(w)).sum(dtype=np.float64) / 2), gradient

    shape = (len(scale), n_fits * n_labels)
    at = np.zeros(shape, np.float32) if start is None else start.reshape(shape) / scale
    return np.asarray((_minimum(loss, at) * scale).reshape(-1, n_fits, n_labels))


def _minimum(loss: Callable[[Float32Array], tuple[float, Float32Array]], at: Float32Array) -> Float32Array:
    """Where a convex loss, given with its gradient, is least: L-BFGS (Nocedal 1980), steps halved until they gain."""
    value, gradient = loss(at)
    steps: deque[tuple[Float32Array, Float32Array, float]] = deque(maxlen=_MEMORY)
    for _ in range(_MOST_STEPS):
        direction, parts = -gradient, []
        for step, change, product in reversed(steps):
            parts.append(np.vdot(step, direction) / product)
            direction -= parts[-1] * change
        if steps:
            direction *= steps[-1][2] / np.vdot(steps[-1][1], steps[-1][1])
        for (step, change, product), part in zip(steps, reversed(parts), strict=True):
            direction += (part - np.vdot(change, direction) / product) * step
        slope, size = float(np.vdot(gradient, direction)), 1.0 if steps else 1 / max(1.0, float(np.abs(gradient).max()))
        while (found := loss(at + size * direction))[0] > value + 1e-4 * size * slope and size > _SHORTEST:
            size /= 2
        step, change = size * direction, found[1] - gradient
        at, (value, gradient) = at + step, found
        if size <= _SHORTEST or np.vdot(gradient, gradient) <= _LEAST_GAIN * value:
            break
        if (product := float(np.vdot(step, change))) > 0:
            steps.append((step, change, product))
    return at


def words_of(text: str) -> IntArray:
    """(n,) the columns, below N_WORDS, of what the words in a text consist of: n runs of 2 to 4 characters, hashed.

    Of the text the first 1,024 characters count, in lower case; between words, and around all, there is one space.
    """
    words = re.findall(r"\w+", normalize("NFC", text[:_MOST_CHARACTERS].lower()))
    run = characters = np.frombuffer(f" {' '.join(words)} ".encode("utf-32-le"), "<u4")
    runs = []
    for n in (1, 2, 3):
        run = run[:-1] * _FACTOR + characters[n:]
        runs.append(run)
    return (np.concatenate(runs) * _SPREAD >> _SHIFT).astype(np.intp)


def cross_fit_words(texts: Sequence[str], target: AnyFloats, fold: IntArray, every: int = 1) -> CrossFit:
    """`cross_fit` on how often the runs in texts occur, by the root of their number, in which seldom ones count more.

    All but the first 4,000 texts, of more than 80 labels fewer, are answered by the fit to these.
    """
    x = np.zeros((min(len(texts), _MOST_TEXTS, _MOST_SHARES // target.shape[1]), N_WORDS), np.float32)
    for row, text in zip(x, texts, strict=False):
        columns = words_of(text)
        row[:] = np.bincount(columns, minlength=N_WORDS) / math.sqrt(len(columns))
    scale = 1 + np.log((1 + len(x)) / (1 + np.count_nonzero(x, axis=0))).astype(np.float32)
    x *= scale
    found = cross_fit(x, target[: len(x)], fold[: len(x)], [_WORD_PENALTY], every=every)
    weight = found.weight * scale[:, None]
    rest = [word_odds(text, weight) + found.bias for text in texts[len(x) : (fold >= 0).sum()]]
    of_rest = np.asarray(log_softmax(np.reshape(rest, (-1, target.shape[1]))), np.float64)
    log_p = np.concatenate([found.log_p, of_rest])
    return found._replace(log_p=log_p, losses=-(target[: len(log_p)] * log_p).sum(axis=1), weight=weight)


def word_odds(text: str, weight: Float32Array) -> Float32Array:
    """(n_labels,) what the words in a text add to log-odds; weight: (N_WORDS, n_labels)."""
    columns = words_of(text)
    return np.asarray(weight[columns].sum(axis=0) * np.float32(len(columns) ** -0.5))
