"""Learnt and pointer heads: states to label log-probabilities. This numpy code is the definition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..config.heads_file import Head
from ..prompts.trie import Pointer
from ..statistics import Float32Array, IntArray, log_softmax

_LEAST = 1e-12
"""added to a mean square, so that a state of zeros stays one"""


def unit_states(state: Float32Array) -> Float32Array:
    """(…, n_embd) states divided by the root of their mean square, as an RMS norm without weights does."""
    square = np.square(state, dtype=np.float64).mean(axis=-1, keepdims=True)  # of 1e20, too
    return np.asarray(state / np.sqrt(square + _LEAST), np.float32)


def head_scores(head: Head, state: Float32Array, own: Float32Array) -> Float32Array:
    """(n, n_labels) log-probabilities by a head.

    state: (n, n_embd) at its depth, as the decode gives them; own: (n, n_labels) the prompt's own scores.
    """
    found = unit_states(state) @ head.weight + head.bias
    return log_softmax(found + np.float32(head.scale) * own if head.reads_labels else found)


def pointer_scores(pointer: Pointer, states: Float32Array) -> Float32Array:
    """(n, n_options) log-probabilities by a pointer head. states: (n, n_options + 1, n_embd), the prompt's end last."""
    # products one by one, since BLAS threads stall on a busy machine: 28 ms for 0.2
    query = np.vecdot(pointer.query, states[:, -1:]) + pointer.query_bias
    along = np.vecdot(pointer.key, query[:, None])  # q · (z @ key + key_bias), without a product with `key` an option
    products = np.vecdot(states[:, :-1], along[:, None]) + np.vecdot(query, pointer.key_bias)[:, None]
    return log_softmax(products / np.float32(query.shape[1] ** 0.5))


class HeadScorer:
    """The learnt heads of a prompt set, computed in a few steps for all of them."""

    def __init__(self, heads: Mapping[int, Head], labels: Sequence[slice], edge: Sequence[int]) -> None:
        """heads: by prompt; labels, edge: of each prompt, the columns of its labels and the edge of its state."""
        prompts = sorted(heads, key=lambda prompt: heads[prompt].depth)
        learnt = [heads[prompt] for prompt in prompts]
        self._sorted_depths = [head.depth for head in learnt]
        self._edges = np.array([edge[prompt] for prompt in prompts])
        self.columns = np.concatenate([np.r_[labels[prompt]] for prompt in prompts])
        """(n,) of the labels that heads answer, among those of all prompts"""
        self._n_labels = np.array([len(head.bias) for head in learnt])
        self._first = np.cumsum(self._n_labels) - self._n_labels
        self._rows = np.ascontiguousarray(np.concatenate([head.weight.T for head in learnt]))  # (n, n_embd)
        self._bias = np.concatenate([head.bias for head in learnt])
        scale = np.repeat([np.float32(head.scale) for head in learnt], self._n_labels)
        self._scale = scale if scale.any() else None
        self._depths: list[tuple[slice, slice]] = []
        """heads of one depth, columns of their states"""

    def use_columns(self, columns: Callable[[int], slice]) -> None:
        """From now on the states of a depth are in these columns of the rows."""
        depths = self._sorted_depths
        self._depths = [
            (slice(depths.index(depth), depths.index(depth) + depths.count(depth)), columns(depth))
            for depth in dict.fromkeys(depths)
        ]

    def scores(self, hidden: Float32Array, row: IntArray, own: Float32Array) -> Float32Array:
        """(n_queries, n) log-probabilities of the labels at `columns`, as `head_scores` defines them; a query's are the
        same to the bit alone and beside others.

        hidden, row: as Scorer.score takes them; own: (n_queries, n_labels) scores of all labels by their texts.
        """
        found = np.empty((len(row), len(self._bias)), np.float32)
        for some, columns in self._depths:
            states = unit_states(hidden[row[:, self._edges[some]], columns]).swapaxes(0, 1)[:, :, None]
            for state, first, n in zip(states, self._first[some], self._n_labels[some], strict=True):
                np.vecdot(state, self._rows[first : first + n], out=found[:, first : first + n])
        found += self._bias
        if self._scale is not None:
            found += self._scale * own[:, self.columns]
        found -= np.maximum.reduceat(found, self._first, axis=1).repeat(self._n_labels, axis=1)
        found -= np.log(np.add.reduceat(np.exp(found), self._first, axis=1)).repeat(self._n_labels, axis=1)
        return found
