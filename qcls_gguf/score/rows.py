"""What stands in the rows of a decode, and what becomes of it: logits of labels' tokens, and scores by heads.

Heads' numpy code is the definition of what they compute.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..config.fitted import Head
from ..errors import ScoreError
from ..prompts.trie import Pointer
from ..statistics import Float32Array, Int32Array, IntArray, log_softmax
from ..statistics.logistic import word_odds

_LEAST = 1e-12
"""added to a mean square, so that a state of zeros stays one"""


@dataclass(frozen=True, slots=True, eq=False)
class RowLayout:
    """Where a row of a decode has what scores are made of: first the hidden state, then the residual streams after some
    layers, then, with label tokens, their logits and the log-sum-exp of all logits.
    """

    n_embd: int
    depths: tuple[int, ...] = ()
    """the layers, beside the last one that is computed, whose residual streams are in the row"""
    last_layer: int = 0
    """the last layer that is computed, whose residual stream is the hidden state; 0: all, and the final norm"""
    label_tokens: Int32Array = field(default_factory=lambda: np.empty(0, np.int32))
    """(n,) the tokens whose logits are in the row, ascending"""

    def columns(self, depth: int) -> slice:
        """The columns of the state after `depth` layers; after all layers, of the hidden state."""
        first = (self.depths.index(depth) + 1) * self.n_embd if depth in self.depths else 0
        return slice(first, first + self.n_embd)


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


class TrieBuffers(Protocol):
    """Arrays for some number of queries: the scorer writes logits into them and reads scores from them."""

    edge: Float32Array
    """(n_queries, n_edges) the logits, and afterwards the log-softmax of every edge"""
    score: Float32Array
    """(n_queries, n_labels) the labels' log-probabilities"""
    probability: Float32Array
    """(n_queries, n_labels)"""
    finite: npt.NDArray[np.int64]
    """(1,) 1 if all log-probabilities are finite, else 0"""
    compute: Callable[[], int]
    """computes score, probability and finite from edge, and returns 0"""


Arithmetic = Callable[[Int32Array, Int32Array, Int32Array], Callable[[int], TrieBuffers]]
"""from the layout of a scorer's edges (see Scorer) to what makes the buffers for n queries, in which the logits of
edges become the log-probabilities of labels, without a dozen calls of numpy; one thread at a time"""


def unit_states(state: Float32Array) -> Float32Array:
    """(…, n_embd) states divided by the root of their mean square, as an RMS norm without weights does."""
    square = np.square(state, dtype=np.float64).mean(axis=-1, keepdims=True)  # of 1e20, too
    return np.asarray(state / np.sqrt(square + _LEAST), np.float32)


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
        """heads: by prompt; labels, edge: of every prompt, the columns of its labels and the edge of its state."""
        prompts = sorted(heads, key=lambda prompt: heads[prompt].depth)
        learnt = [heads[prompt] for prompt in prompts]
        depths = [head.depth for head in learnt]
        self._depths = [
            (depth, slice(bisect_left(depths, depth), bisect_right(depths, depth))) for depth in dict.fromkeys(depths)
        ]
        self._edges = np.array([edge[prompt] for prompt in prompts])
        self.columns = np.concatenate([np.r_[labels[prompt]] for prompt in prompts])
        """(n,) of the labels that heads answer, among those of all prompts"""
        self._n_labels = np.array([len(head.bias) for head in learnt])
        self._first = np.cumsum(self._n_labels) - self._n_labels
        self._rows = np.ascontiguousarray(np.concatenate([head.weight.T for head in learnt]))  # (n, n_embd)
        self._bias = np.concatenate([head.bias for head in learnt])
        self._worded = np.flatnonzero(np.repeat([head.words is not None for head in learnt], self._n_labels))
        words = [head.words for head in learnt if head.words is not None]
        self._words = np.concatenate(words, axis=1) if words else None
        scale = np.repeat([np.float32(head.scale) for head in learnt], self._n_labels)
        self._scale = scale if scale.any() else None

    def scores(
        self,
        hidden: Float32Array,
        layout: RowLayout,
        row_of_edge: IntArray,
        by_labels: Float32Array,
        queries: Sequence[str],
    ) -> Float32Array:
        """(n_queries, n) log-probabilities of the labels at `columns`, as `Head` defines them; a query's are the same
        to the bit alone and beside others.

        hidden, layout, row_of_edge: as Scorer.score takes them; by_labels: (n_queries, n_labels) scores of all labels
        by their texts; queries: (n_queries,).
        """
        scores = np.empty((len(row_of_edge), len(self._bias)), np.float32)
        for depth, heads in self._depths:
            rows, states = row_of_edge.T[self._edges[heads]], hidden[:, layout.columns(depth)]
            # heads may share states, of which each is then normalised once
            states = unit_states(states)[rows] if len(states) < rows.size else unit_states(states[rows])
            for state, first, n in zip(states[:, :, None], self._first[heads], self._n_labels[heads], strict=True):
                np.vecdot(state, self._rows[first : first + n], out=scores[:, first : first + n])
        scores += self._bias
        if self._words is not None:
            for row, query in zip(scores, queries, strict=True):
                row[self._worded] += word_odds(query, self._words)
        if self._scale is not None:
            scores += self._scale * by_labels[:, self.columns]
        scores -= np.maximum.reduceat(scores, self._first, axis=1).repeat(self._n_labels, axis=1)
        scores -= np.log(np.add.reduceat(np.exp(scores), self._first, axis=1)).repeat(self._n_labels, axis=1)
        return scores
