"""The arithmetic of label tries in C."""

from __future__ import annotations

from ctypes import byref

import numpy as np

from ..errors import PlanError
from .abi import Error, Trie, check
from .arrays import INT32, Float32Array, Int32Array, address
from .library import library


class TrieScores:
    """The arithmetic of label tries (see score/scorer.py): edge logits to label scores. One thread at a time."""

    def __init__(self, node_start: Int32Array, label_start: Int32Array, label_edge: Int32Array) -> None:
        """Node i's edges are [node_start[i], node_start[i + 1]), label j's path label_edge[label_start[j] :
        label_start[j + 1]]; every node and label has an edge.

        Raises PlanError where they do not fit each other.
        """
        self._layout = node_start, label_start, label_edge  # C reads them as long as this lives
        nodes, labels, label_edges = (address(array, INT32, 1, len(array)) for array in self._layout)
        for start, n in ((node_start, int(node_start[-1])), (label_start, len(label_edge))):
            if start[0] != 0 or start[-1] != n or not (np.diff(start) > 0).all():
                raise PlanError(f"starts must ascend from 0 to {n}: {start}")
        self.n_edges = int(node_start[-1])
        if not ((label_edge >= 0) & (label_edge < self.n_edges)).all():
            raise PlanError(f"the labels' edges must be among {self.n_edges}: {label_edge}")
        self._n_labels = len(label_start) - 1
        self._trie = Trie(
            n_nodes=len(node_start) - 1,
            n_labels=self._n_labels,
            node_start=nodes,
            label_start=labels,
            label_edge=label_edges,
        )
        self._error = Error()
        self._arguments = byref(self._trie), byref(self._error)
        self._call = library().qcls_trie_scores
        self._reserve(1)

    def _reserve(self, n_queries: int) -> None:
        self.edge = np.empty((n_queries, self.n_edges), np.float32)
        self._log_probability = np.empty((n_queries, self._n_labels), np.float32)
        self._probability = np.empty((n_queries, self._n_labels), np.float32)
        self._trie.n_queries = n_queries
        self._trie.edge = self.edge.ctypes.data
        self._trie.log_probability = self._log_probability.ctypes.data
        self._trie.probability = self._probability.ctypes.data

    def logits(self, n_queries: int) -> Float32Array:
        """(n_queries, n_edges) where the next call finds the logits."""
        if len(self.edge) != n_queries:
            self._reserve(n_queries)
        return self.edge

    def __call__(self) -> tuple[Float32Array, Float32Array, bool]:
        """(n_queries, n_labels) the log-probabilities, the probabilities, and whether all are finite.

        Both are views that the next call overwrites. `logits` then holds each edge's log-softmax.
        """
        check(self._call(*self._arguments), self._error)
        return self._log_probability, self._probability, self._trie.all_finite == 1
