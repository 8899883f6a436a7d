"""Hidden states and label rows to label scores: pure numpy, one pass for all prompts and queries.

With h the hidden state of a trie node and W[t] the head row of token t, an edge's logit is h · W[t].

- `first_token`: a label's score is its edge's logit; its probability the softmax over the prompt's labels.
- `tree`: a label's score is the sum over its edges of the log-softmax over the edge's siblings; its probability is
  exp(score). A proper distribution over the labels, whatever number of tokens they have.

The exact scorings need, beside the hidden states, the LM head's own logits z of the edges' tokens and their log-sum-exp
over the vocabulary, as a context with label tokens returns them; an edge's log-probability is z - log-sum-exp.

- `joint`: a label's score is the sum over its edges, log p(label | prompt).
- `mean`: joint divided by the number of edges.
- The probability of both is the softmax of the scores over the prompt's labels. The label mass of a prompt is the sum
  of exp(joint) over its labels: how much of the model's belief lies on the label set at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import ScoreError
from .labels import EXACT_SCORINGS, LabelTrie

Float32Array = npt.NDArray[np.float32]
FloatArray = npt.NDArray[np.floating[Any]]
Int32Array = npt.NDArray[np.int32]
IndexArray = npt.NDArray[np.intp]

_COPIED_FLOATS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelScores:
    """Scores of n queries; the labels of all prompts lie side by side, prompt p's at [first[p], first[p + 1])."""

    score: Float32Array
    """(n_queries, n_labels)"""
    probability: Float32Array
    """(n_queries, n_labels)"""
    exact: ExactScores | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactScores:
    """What the whole vocabulary says, where it was asked."""

    joint: Float32Array
    """(n_queries, n_labels)"""
    mean: Float32Array
    """(n_queries, n_labels)"""
    label_mass: Float32Array
    """(n_queries, n_prompts)"""


class Scorer:
    """Scores the labels of several prompts from the hidden states of their read nodes."""

    def __init__(
        self, tries: Sequence[LabelTrie], rows: dict[int, Float32Array], label_tokens: Int32Array | None = None
    ) -> None:
        """rows[t] is the head row of token t, shape (n_embd,), for every token on an edge of the tries.

        label_tokens: (n,) ascending, the tokens whose logits lie behind the hidden states; none: hidden states only.
        """
        self._scoring = [trie.scoring for trie in tries]
        self.n_positions = sum(len(trie.read) for trie in tries)
        """Hidden states that one query's scores read: prompt by prompt, each prompt's in the order of trie.read."""
        position: list[int] = []
        edge_row: list[Float32Array] = []
        node_start: list[int] = []
        label_edge: list[int] = []
        label_start: list[int] = []
        edge_token: list[int] = []
        self.first = [0]
        n_positions = 0
        for trie in tries:
            edge_base = len(position)
            for index, node in enumerate(trie.read):
                node_start.append(len(position))
                for edge in trie.edges:
                    if edge.node == node:
                        position.append(n_positions + index)
                        edge_row.append(rows[edge.token])
                        edge_token.append(edge.token)
            n_positions += len(trie.read)
            for edges in trie.label_edges:
                label_start.append(len(label_edge))
                label_edge += [edge_base + edge for edge in edges]
            self.first.append(self.first[-1] + len(trie.label_edges))
        self._position = np.array(position, np.intp)
        self._edge_rows = np.stack(edge_row).astype(np.float32)  # (n_edges, n_embd)
        self._node_start = np.array(node_start, np.intp)
        ends = [*node_start[1:], len(position)]
        self._nodes = [(position[start], start, end) for start, end in zip(node_start, ends, strict=True)]
        n_edges = np.diff([*node_start, len(position)]).astype(np.intp)
        self._node_of_edge = np.repeat(np.arange(len(node_start)), n_edges)
        self._label_edge = np.array(label_edge, np.intp)
        self._label_start = np.array(label_start, np.intp)
        self._n_edges = np.diff([*label_start, len(label_edge)])
        self._label_column = None if label_tokens is None else np.searchsorted(label_tokens, edge_token)

    def score(self, hidden: Float32Array, row: IndexArray) -> LabelScores:
        """Scores of n queries.

        hidden: (n_rows, n_embd) final-norm hidden states, or (n_rows, n_embd + n_label_tokens + 1) with the label
        tokens' logits and the log-sum-exp behind them; row: (n_queries, n_positions) which row each read node is.
        Raises ScoreError where a hidden state is not finite.
        """
        with np.errstate(over="ignore", invalid="ignore"):  # what they would warn of is refused below
            n_embd = self._edge_rows.shape[1]
            edge = self._edges(hidden[:, :n_embd], row)
            top = np.maximum.reduceat(edge, self._node_start, axis=1)
            shifted = edge - top[:, self._node_of_edge]
            log_sum = np.log(np.add.reduceat(np.exp(shifted), self._node_start, axis=1))
            log_softmax = shifted - log_sum[:, self._node_of_edge]
            log_probability = np.add.reduceat(log_softmax[:, self._label_edge], self._label_start, axis=1)
            exact = self._exact(hidden[:, n_embd:], row)
        if not np.isfinite(log_probability).all() or not (exact is None or np.isfinite(exact.joint).all()):
            raise ScoreError("a hidden state is not finite: the model file is damaged, or the compute type overflows")
        score, probability = log_probability.copy(), np.exp(log_probability)
        for index, scoring in enumerate(self._scoring):
            labels = slice(self.first[index], self.first[index + 1])
            if scoring == "first_token":
                score[:, labels] = edge[:, self._label_edge[self._label_start[labels]]]
            elif scoring in EXACT_SCORINGS and exact is not None:
                score[:, labels] = (exact.joint if scoring == "joint" else exact.mean)[:, labels]
                probability[:, labels] = softmax(score[:, labels])
        return LabelScores(score=score, probability=probability, exact=exact)

    def _edges(self, hidden: Float32Array, row: IndexArray) -> Float32Array:
        """(n_queries, n_edges) logits: one dot product an edge.

        An order less work than hidden @ rows.T, whose BLAS threads also stall on a busy machine: 2 busy cores, 95 edges
        of 4096, median 0.05 ms against 0.19, worst 4 ms against 150. Node by node, hidden states are not copied for
        each of their edges: 0.11 ms against 0.19 on a Xeon; for small models one call is faster than many.
        """
        if len(row) * self._edge_rows.size <= _COPIED_FLOATS:
            return np.asarray(np.vecdot(hidden[row[:, self._position]], self._edge_rows))
        edge = np.empty((len(row), len(self._edge_rows)), np.float32)
        for position, start, end in self._nodes:
            np.vecdot(hidden[row[:, position], None], self._edge_rows[start:end], out=edge[:, start:end])
        return edge

    def _exact(self, label_logits: Float32Array, row: IndexArray) -> ExactScores | None:
        if self._label_column is None:
            return None
        rows = row[:, self._position]
        log_probability = label_logits[rows, self._label_column] - label_logits[rows, -1]
        joint = np.add.reduceat(log_probability[:, self._label_edge], self._label_start, axis=1)
        return ExactScores(
            joint=joint,
            mean=(joint / self._n_edges).astype(np.float32),
            label_mass=np.add.reduceat(np.exp(joint), self.first[:-1], axis=1),
        )


def softmax(score: FloatArray) -> FloatArray:
    """Over the last axis."""
    power = np.exp(score - score.max(axis=-1, keepdims=True))
    return np.asarray(power / power.sum(axis=-1, keepdims=True))
