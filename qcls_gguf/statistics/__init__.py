"""Statistics of shares, probabilities and times, as functions of arrays.

Shapes: p (n_rows, n_labels) are probabilities, accepted (n_rows, n_labels) says which labels are right; a row's answer
is its most probable label, of equally probable ones the first. Values are finite. Without rows a mean is None.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Float32Array = npt.NDArray[np.float32]
Int32Array = npt.NDArray[np.int32]
AnyFloats = npt.NDArray[np.floating[Any]]
IntArray = npt.NDArray[np.intp]
BoolArray = npt.NDArray[np.bool_]

N_BINS = 15
"""bins of the reliability diagram and of the calibration error"""
SMALLEST = 1e-12
"""the log-loss takes smaller probabilities for this one"""
_BOUND_WIDTH = 1e-9
_Z95 = 1.959963984540054  # the 97.5 % point of the normal distribution


def mean(values: npt.ArrayLike) -> float | None:
    """The mean; of truth values their share."""
    array = np.asarray(values, np.float64)
    return float(array.mean()) if array.size else None


def wilson(n_right: int, n: int) -> tuple[float, float] | None:
    """The 95 % interval of a share of which n_right in n were seen; None without any.

    (s + z²/2n ± z √(s (1-s)/n + z²/4n²)) / (1 + z²/n) with s = n_right / n: Wilson 1927; method 3 in Newcombe 1998.
    """
    if n == 0:
        return None
    share, z2 = n_right / n, _Z95 * _Z95
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def binomial_cdf(k: int, n: int, p: float) -> float:
    """P(X <= k) of X ~ Bin(n, p) with 0 < p < 1: Σ C(n, i) p^i (1-p)^(n-i) over i <= k, by logarithms."""
    if not 0 <= k < n:
        return float(k >= n)
    i = np.arange(1, k + 1)
    terms = np.cumsum(np.log((n - i + 1) / i * (p / (1 - p))))
    return min(1.0, math.exp(n * math.log1p(-p) + log_sum_exp(np.append(terms, 0.0))))


def sign_test(n_better: int, n_worse: int) -> float:
    """How likely so few of the rows that changed are worse if each were a coin's toss."""
    return binomial_cdf(n_worse, n_better + n_worse, 0.5)


def right_answers(p: AnyFloats, accepted: BoolArray) -> BoolArray:
    """(n_rows,) whether the answers by probabilities or scores, p, are accepted, of which more rows may be known."""
    return np.asarray(accepted[np.arange(len(p)), p.argmax(axis=1)])


def upper_bound(n_seen: int, n: int, confidence: float) -> float:
    """The one-sided bound that a share of which n_seen in n were seen lies below with at least this confidence.

    The share with which so few are seen with probability 1 - confidence: Clopper and Pearson 1934.
    """
    low, high = 0.0, 1.0
    while n_seen < n and high - low > _BOUND_WIDTH:
        middle = (low + high) / 2
        low, high = (low, middle) if binomial_cdf(n_seen, n, middle) < 1 - confidence else (middle, high)
    return high


def paired_difference(before: npt.NDArray[np.floating], after: npt.NDArray[np.floating]) -> tuple[float, float]:
    """The mean of before - after, each (n_rows,) with at least two rows, and its standard error: s / √n."""
    differences = before - after
    return float(differences.mean()), float(differences.std(ddof=1) / math.sqrt(len(differences)))


def log_losses(p_accepted: FloatArray) -> FloatArray:
    """(n_rows,) -ln max(p of the accepted labels, SMALLEST), in nats; the log-loss is their mean."""
    return np.asarray(0 - np.log(np.maximum(p_accepted, SMALLEST)))


def reliability(confidence: FloatArray, right: BoolArray) -> tuple[IntArray, FloatArray, FloatArray]:
    """(N_BINS,) each: rows, mean confidence and accuracy in equal bins of the answer's probability; NaN for no rows.

    confidence: (n_rows,) the answers' probabilities; right: (n_rows,) whether they are accepted.
    """
    index = np.clip((confidence * N_BINS).astype(np.intp), 0, N_BINS - 1)
    n = np.bincount(index, minlength=N_BINS)
    parts = [[values[index == i] for i in range(N_BINS)] for values in (confidence, right.astype(np.float64))]
    means = [np.array([part.mean() if part.size else np.nan for part in of_bins]) for of_bins in parts]
    return n, means[0], means[1]


def calibration_error(confidence: FloatArray, right: BoolArray) -> float | None:
    """The expected calibration error: Σ over the bins of n_bin / n · |accuracy - mean confidence|.

    confidence, right: (n_rows,). Naeini, Cooper and Hauskrecht 2015, with the bins of `reliability`.
    """
    n, mean_confidence, accuracy = reliability(confidence, right)
    if not n.sum():
        return None
    return float((n * np.abs(accuracy - mean_confidence))[n > 0].sum() / n.sum())


def confusion_matrix(true: IntArray, answer: IntArray, n_labels: int) -> npt.NDArray[np.int64]:
    """(n_labels, n_labels) the number of rows of each true label that got each answer."""
    matrix = np.zeros((n_labels, n_labels), np.int64)
    np.add.at(matrix, (true, answer), 1)
    return matrix


def f1_scores(matrix: npt.NDArray[np.int64]) -> FloatArray:
    """(n_labels,) 2·tp / (2·tp + fp + fn) from a confusion matrix; NaN for labels that are neither true nor answered.

    Macro-F1 is the mean of the others.
    """
    total = matrix.sum(axis=0) + matrix.sum(axis=1)
    f1 = np.full(len(matrix), np.nan)
    np.divide(2.0 * matrix.diagonal(), total, out=f1, where=total > 0)
    return f1


def quantiles(values: npt.ArrayLike, *levels: float) -> tuple[float, ...]:
    """The quantiles of at least one value, between neighbours by linear interpolation."""
    return tuple(np.quantile(np.asarray(values, np.float64), levels).tolist())


def spread(values: Sequence[float]) -> float | None:
    """(largest - smallest) / median: how far repetitions lie apart; None for fewer than two."""
    return (max(values) - min(values)) / float(np.median(values)) if len(values) > 1 else None


def softmax(score: AnyFloats) -> AnyFloats:
    """Over the last axis, in the precision of the scores."""
    power = np.exp(score - score.max(axis=-1, keepdims=True))
    return np.asarray(power / power.sum(axis=-1, keepdims=True))


def log_softmax(score: AnyFloats) -> AnyFloats:
    """Over the last axis."""
    return np.asarray(score - log_sum_exp(score)[..., None])


def log_sum_exp(score: AnyFloats, axis: int = -1) -> AnyFloats:
    """Over an axis, on which one score at least is finite."""
    top = score.max(axis=axis, keepdims=True)
    return np.asarray((np.log(np.exp(score - top).sum(axis=axis, keepdims=True)) + top).squeeze(axis))
