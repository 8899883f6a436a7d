"""The arithmetic of label tries: logits of edges to scores of labels. This numpy code is the definition.

`qcls_gguf.native.TrieScores` computes the same in C, without a dozen calls of numpy after each decode.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]
Int32Array = npt.NDArray[np.int32]


class TrieArithmetic(Protocol):
    """Turns the logits of a scorer's edges into its labels' log-probabilities. One thread at a time."""

    def logits(self, n_queries: int) -> Float32Array:
        """(n_queries, n_edges) the array into which the caller writes the logits for the next call."""

    def __call__(self) -> tuple[Float32Array, Float32Array, bool]:
        """(n_queries, n_labels) the log-probabilities, the probabilities, and whether all are finite.

        Both may be views that the next call overwrites.
        """


class NumpyTries:
    """TrieArithmetic in numpy."""

    def __init__(self, node_start: Int32Array, label_start: Int32Array, label_edge: Int32Array) -> None:
        """Node i's edges are [node_start[i], node_start[i + 1]), label j's path label_edge[label_start[j] :
        label_start[j + 1]]; every node and label has an edge.
        """
        self._node_start = node_start[:-1].astype(np.intp)
        self._node_of = np.repeat(np.arange(len(node_start) - 1), np.diff(node_start))
        self._label_start = label_start[:-1].astype(np.intp)
        self._label_edge = label_edge.astype(np.intp)
        self._edge = np.empty((0, int(node_start[-1])), np.float32)

    def logits(self, n_queries: int) -> Float32Array:
        if len(self._edge) != n_queries:
            self._edge = np.empty((n_queries, self._edge.shape[1]), np.float32)
        return self._edge

    def __call__(self) -> tuple[Float32Array, Float32Array, bool]:
        edge = self._edge
        with np.errstate(over="ignore", invalid="ignore"):
            edge -= np.maximum.reduceat(edge, self._node_start, axis=1)[:, self._node_of]
            total = np.add.reduceat(np.exp(edge), self._node_start, axis=1)
            edge -= np.log(total)[:, self._node_of]
            score = np.add.reduceat(edge[:, self._label_edge], self._label_start, axis=1)
            probability = np.exp(score)
        return score, probability, bool(np.isfinite(score).all())
