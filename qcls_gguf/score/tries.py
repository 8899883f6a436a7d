"""The arithmetic of label tries as the scorer uses it: from logits of edges to scores of labels.

`qcls_gguf.native.TrieScores` computes it in C, without a dozen calls of numpy after each decode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]
Int32Array = npt.NDArray[np.int32]


class Room(Protocol):
    """Arrays for some number of queries: the scorer writes logits into them and reads scores from them."""

    edge: Float32Array
    """(n_queries, n_edges) the logits, and afterwards each edge's log-softmax"""
    score: Float32Array
    """(n_queries, n_labels) the labels' log-probabilities"""
    probability: Float32Array
    """(n_queries, n_labels)"""
    finite: npt.NDArray[np.int64]
    """(1,) 1 if all log-probabilities are finite, else 0"""
    compute: Callable[[], int]
    """computes score, probability and finite from edge, and returns 0"""


class TrieArithmetic(Protocol):
    """Turns the logits of a scorer's edges into its labels' log-probabilities. One thread at a time."""

    def room(self, n_queries: int) -> Room:
        """The arrays for n queries."""
