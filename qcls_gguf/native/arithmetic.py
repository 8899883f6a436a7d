"""Arithmetic in C: the types of tensors, as ggml numbers them, with their values as float32; and label tries."""

from collections.abc import Callable
from ctypes import byref, c_int64
from functools import cache, partial

import numpy as np
import numpy.typing as npt

from ..errors import PlanError
from ..statistics import Float32Array, Int32Array
from .abi import FLOAT32, INT32, Error, Status, Trie, address, check
from .library import call, library

_UINT8 = np.dtype(np.uint8)


@cache
def type_block(kind: int) -> tuple[int, int] | None:
    """The values and the bytes of a block of a type; None where ggml has no such type."""
    n_values, n_bytes, error = c_int64(), c_int64(), Error()
    if kind >= 1 << 31:
        return None
    status = library().qcls_type_block(kind, byref(n_values), byref(n_bytes), byref(error))
    if status == Status.BAD_ARGUMENT:
        return None
    check(status, error)
    return n_values.value, n_bytes.value


def dequantised(kind: int, data: npt.NDArray[np.uint8], n_values: int) -> Float32Array:
    """The values, shape (n_values,), of whole blocks of a type, uint8 of shape (n_bytes,).

    Raises PlanError for a type that is not one of weights, or blocks of another number of values.
    """
    values = np.empty(n_values, np.float32)
    source, target = address(data, _UINT8, 1, data.size), address(values, FLOAT32, 1, n_values)
    call("qcls_dequantise", kind, source, data.size, target, n_values)
    return values


TrieLayout = tuple[Int32Array, Int32Array, Int32Array]
"""node_start, label_start, label_edge: node i's edges are [node_start[i], node_start[i + 1]), label j's path
label_edge[label_start[j] : label_start[j + 1]]"""


class TrieArrays:
    """The arrays that C reads and writes for some number of queries: see TrieBuffers in score/rows.py."""

    __slots__ = ("_layout", "compute", "edge", "finite", "probability", "score")

    def __init__(self, layout: TrieLayout, n_queries: int) -> None:
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


def trie_arrays(node_start: Int32Array, label_start: Int32Array, label_edge: Int32Array) -> Callable[[int], TrieArrays]:
    """What makes the arrays for n queries, in which C turns edge logits into label scores (see score/scorer.py).

    node_start, label_start, label_edge: a TrieLayout; every node and label has an edge. Raises PlanError where they do
    not fit.
    """
    layout = node_start, label_start, label_edge
    for array in layout:
        address(array, INT32, 1, len(array))
    for start, n in ((node_start, int(node_start[-1])), (label_start, len(label_edge))):
        if start[0] != 0 or start[-1] != n or not (np.diff(start) > 0).all():
            raise PlanError(f"starts must ascend from 0 to {n}: {start}")
    if not ((label_edge >= 0) & (label_edge < node_start[-1])).all():
        raise PlanError(f"the labels' edges must be among {node_start[-1]}: {label_edge}")
    return partial(TrieArrays, layout)
