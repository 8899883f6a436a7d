"""Softmax, log-softmax and log-sum-exp, in the precision of their argument."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.floating[Any]]


def softmax(score: FloatArray) -> FloatArray:
    """Over the last axis."""
    power = np.exp(score - score.max(axis=-1, keepdims=True))
    return np.asarray(power / power.sum(axis=-1, keepdims=True))


def log_softmax(score: FloatArray) -> FloatArray:
    """Over the last axis."""
    return np.asarray(score - log_sum_exp(score)[..., None])


def log_sum_exp(score: FloatArray, axis: int = -1) -> FloatArray:
    """Over an axis, on which one score at least is finite."""
    top = score.max(axis=axis, keepdims=True)
    return np.asarray((np.log(np.exp(score - top).sum(axis=axis, keepdims=True)) + top).squeeze(axis))
