"""From products of hidden states with rows of the output matrix to logits, in numpy; and the interface of what makes of
these the scores of labels.

`qcls_gguf.native.trie` does that in C, without a dozen calls of numpy after each decode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..errors import ScoreError
from ..statistics import Float32Array, Int32Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """With h · W[t] the product for token t, y = (h · W[t] + bias[t]) · scale: the logit is y, or cap · tanh(y / cap).

    Gemma 2 caps, Granite divides, Command R multiplies, Phi-2 has a bias.
    """

    scale: float = 1.0
    cap: float | None = None
    bias: Mapping[int, float] | None = None
    """by token"""

    def scaled(self, rows: Float32Array) -> Float32Array:
        """Rows of the output matrix, (n, n_embd), multiplied by the scale; `finish` takes the products with these."""
        return rows if self.scale == 1 else rows * np.float32(self.scale)

    def finish(self, tokens: Sequence[int]) -> Callable[[Float32Array], None] | None:
        """The function that turns products with some tokens' scaled rows, (n_queries, n_tokens), into logits in place;
        None if they are the logits. It raises ScoreError if a product is not finite.
        """
        if self.bias is None and self.cap is None:
            return None
        bias = None
        if self.bias is not None:
            bias = (np.array([self.bias[token] for token in tokens], np.float32) * self.scale).astype(np.float32)
        cap = None if self.cap is None else np.float32(self.cap)

        def finish(edge: Float32Array) -> None:
            if bias is not None:
                edge += bias
            if cap is not None:
                if not np.isfinite(edge).all():  # checked here, because the cap makes infinities finite
                    raise ScoreError(NOT_FINITE)
                edge /= cap
                np.tanh(edge, out=edge)
                edge *= cap

        return finish


NOT_FINITE = "a hidden state is not finite: the model file is damaged, or the compute type overflows"


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


Arithmetic = Callable[[Int32Array, Int32Array, Int32Array], Callable[[int], Room]]
"""from the layout of a scorer's edges (see Scorer) to what makes the room for n queries, in which the logits of edges
become the log-probabilities of labels; one thread at a time"""
