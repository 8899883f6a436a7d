"""Learnt and pointer heads: states to label log-probabilities. This numpy code is the definition."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..config.heads_file import Head
from ..prompts.pointer import Pointer
from ..statistics import log_softmax

Float32Array = npt.NDArray[np.float32]

_LEAST = 1e-12
"""added to a mean square, so that a state of zeros stays one"""


def unit_states(state: Float32Array) -> Float32Array:
    """(…, n_embd) states divided by the root of their mean square, as an RMS norm without weights does."""
    square = np.square(state, dtype=np.float32).mean(axis=-1, keepdims=True)
    return np.asarray(state / np.sqrt(square + np.float32(_LEAST)), np.float32)


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
