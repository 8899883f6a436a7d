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

Layout = tuple[Int32Array, Int32Array, Int32Array]
"""node_start, label_start, label_edge: node i's edges are [node_start[i], node_start[i + 1]), label j's path
label_edge[label_start[j] : label_start[j + 1]]"""


class TrieRoom:
    """The arrays that C reads and writes for some number of queries: see score/output.py."""

    __slots__ = ("_layout", "compute", "edge", "finite", "probability", "score")

    def __init__(self, layout: Layout, n_queries: int) -> None:
        node_start, label_start, label_edge = self._layout = layout  # C reads them as long as this lives
        n_labels = len(label_start) - 1
        self.edge = np.empty((n_queries, node_start[-1]), np.float32)
        self.score = np.empty((n_queries, n_labels), np.float32)
        self.probability = np.empty((n_queries, n_labels), np.float32)
        trie = Trie(
            n_queries=n_queries,
            n_nodes=len(node_start) - 1,
            n_labels=n_labels,
            node_start=node_start.ctypes.data,
            label_start=label_start.ctypes.data,
            label_edge=label_edge.ctypes.data,
            edge=self.edge.ctypes.data,
            log_probability=self.score.ctypes.data,
            probability=self.probability.ctypes.data,
        )
        self.finite = np.frombuffer(
            memoryview(trie).cast("B"), np.int64, 1, Trie.all_finite.offset
        )  # which keeps the struct
        self.compute: Callable[[], int] = partial(library().qcls_trie_scores, byref(trie), None)


def trie_rooms(node_start: Int32Array, label_start: Int32Array, label_edge: Int32Array) -> Callable[[int], TrieRoom]:
    """What makes the room for n queries, in which C turns edge logits into label scores (see score/scorer.py).

    node_start, label_start, label_edge: a Layout; every node and label has an edge. Raises PlanError where they do not
    fit each other.
    """
    layout = node_start, label_start, label_edge
    for array in layout:
        address(array, INT32, 1, len(array))
    for start, n in ((node_start, int(node_start[-1])), (label_start, len(label_edge))):
        if start[0] != 0 or start[-1] != n or not (np.diff(start) > 0).all():
            raise PlanError(f"starts must ascend from 0 to {n}: {start}")
    if not ((label_edge >= 0) & (label_edge < node_start[-1])).all():
        raise PlanError(f"the labels' edges must be among {node_start[-1]}: {label_edge}")
    return partial(TrieRoom, layout)
