"""The arithmetic of label tries: logits of edges to scores of labels. This numpy code is the definition.

`qcls_gguf.native.TrieScores` computes the same in C, without a dozen calls of numpy after each decode.
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

    @property
    def edge(self) -> Float32Array:
        """(n_queries, n_edges) the logits, and afterwards each edge's log-softmax."""

    @property
    def score(self) -> Float32Array:
        """(n_queries, n_labels) the labels' log-probabilities."""

    @property
    def probability(self) -> Float32Array:
        """(n_queries, n_labels)"""

    @property
    def finite(self) -> npt.NDArray[np.int64]:
        """(1,) 1 if all log-probabilities are finite, else 0."""

    @property
    def compute(self) -> Callable[[], int]:
        """A function that computes score, probability and finite from edge; it returns 0."""


class TrieArithmetic(Protocol):
    """Turns the logits of a scorer's edges into its labels' log-probabilities. One thread at a time."""

    def room(self, n_queries: int) -> Room:
        """The arrays for n queries."""


class NumpyTries:
    """TrieArithmetic in numpy."""

    def __init__(self, node_start: Int32Array, label_start: Int32Array, label_edge: Int32Array) -> None:
        """Node i's edges are [node_start[i], node_start[i + 1]), label j's path label_edge[label_start[j] :
        label_start[j + 1]]; every node and label has an edge.
        """
        self.n_edges, self.n_labels = int(node_start[-1]), len(label_start) - 1
        self.node_start = node_start[:-1].astype(np.intp)
        self.node_of = np.repeat(np.arange(len(node_start) - 1), np.diff(node_start))
        self.label_start = label_start[:-1].astype(np.intp)
        self.label_edge = label_edge.astype(np.intp)

    def room(self, n_queries: int) -> NumpyRoom:
        return NumpyRoom(self, n_queries)


class NumpyRoom:
    """Room in numpy."""

    def __init__(self, tries: NumpyTries, n_queries: int) -> None:
        self._tries = tries
        self.edge = np.empty((n_queries, tries.n_edges), np.float32)
        self.score, self.probability = np.empty((2, n_queries, tries.n_labels), np.float32)
        self.finite = np.zeros(1, np.int64)

    def compute(self) -> int:
        tries, edge = self._tries, self.edge
        with np.errstate(over="ignore", invalid="ignore"):
            edge -= np.maximum.reduceat(edge, tries.node_start, axis=1)[:, tries.node_of]
            total = np.add.reduceat(np.exp(edge), tries.node_start, axis=1)
            edge -= np.log(total)[:, tries.node_of]
            self.score[:] = np.add.reduceat(edge[:, tries.label_edge], tries.label_start, axis=1)
            np.exp(self.score, out=self.probability)
        self.finite[0] = np.isfinite(self.score).all()
        return 0
