"""When a candidate is clearly worse than the limit: a one-sided sequential test of agreement.

With q the share of queries that a candidate may answer otherwise, and d disagreements in n queries, the evidence
against q is the mean over some larger shares r of the likelihood ratios

    (r / q)^d · ((1 - r) / (1 - q))^(n - d)

As long as the true share is at most q, each ratio is a supermartingale that begins at 1, and so is their mean: by
Ville's inequality the chance that it ever reaches 1 / level is at most `level`, however often one looks. The queries
have to come in random order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
"""how far the larger shares lie from q towards 1"""


def log_evidence(n: npt.ArrayLike, n_other: npt.ArrayLike, limit: float) -> FloatArray:
    """The logarithm of the evidence that less than `limit` of the answers agree, where n_other of n do not.

    limit: above 0, at most 1.
    """
    total, other = np.asarray(n, np.float64), np.asarray(n_other, np.float64)
    q = 1 - limit
    if q <= 0:  # one answer that differs says all
        return np.where(other > 0, np.inf, 0.0)
    terms = []
    for step in _STEPS:
        r = q + (1 - q) * step
        terms.append(other * np.log(r / q) + (total - other) * np.log((1 - r) / (1 - q)))
    return np.asarray(np.logaddexp.reduce(terms, axis=0) - np.log(len(terms)))


def is_worse(n: int, n_other: int, limit: float, level: float) -> bool:
    """Whether the evidence reaches 1 / level."""
    return bool(log_evidence(n, n_other, limit) >= -np.log(level))
