"""The arithmetic of label tries in C."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref
from functools import partial

import numpy as np

from ..errors import PlanError
from ..statistics import Int32Array
from .abi import INT32, Trie, address
from .library import library


class TrieRoom:
    """The arrays that C reads and writes for some number of queries: see score/output.py."""

    __slots__ = ("compute", "edge", "finite", "probability", "score")

    def __init__(self, members: dict[str, int], n_queries: int, n_edges: int) -> None:
        n_labels = members["n_labels"]
        self.edge = np.empty((n_queries, n_edges), np.float32)
        self.score = np.empty((n_queries, n_labels), np.float32)
        self.probability = np.empty((n_queries, n_labels), np.float32)
        trie = Trie(
            n_queries=n_queries,
            edge=self.edge.ctypes.data,
            log_probability=self.score.ctypes.data,
            probability=self.probability.ctypes.data,
            **members,
        )
        self.finite = np.frombuffer(
            memoryview(trie).cast("B"), np.int64, 1, Trie.all_finite.offset
        )  # which keeps the struct
        self.compute: Callable[[], int] = partial(library().qcls_trie_scores, byref(trie), None)


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
        self._members = {
            "n_nodes": len(node_start) - 1,
            "n_labels": self._n_labels,
            "node_start": nodes,
            "label_start": labels,
            "label_edge": label_edges,
        }

    def room(self, n_queries: int) -> TrieRoom:
        """The arrays for n queries, which stay valid."""
        return TrieRoom(self._members, n_queries, self.n_edges)
