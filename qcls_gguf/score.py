"""Hidden states and label rows to label scores: pure numpy, one pass for all prompts and queries.

With h the hidden state of a trie node and W[t] the head row of token t, an edge's logit is h · W[t].

- `first_token`: a label's score is its edge's logit; its probability the softmax over the prompt's labels.
- `tree`: a label's score is the sum over its edges of the log-softmax over the edge's siblings; its probability is
  exp(score). A proper distribution over the labels, whatever number of tokens they have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .errors import ScoreError
from .labels import LabelTrie

Float32Array = npt.NDArray[np.float32]
IndexArray = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelScores:
    """Scores of n queries; the labels of all prompts lie side by side, prompt p's at [first[p], first[p + 1])."""

    score: Float32Array
    """(n_queries, n_labels)"""
    probability: Float32Array
    """(n_queries, n_labels)"""


class Scorer:
    """Scores the labels of several prompts from the hidden states of their read nodes."""

    def __init__(self, tries: Sequence[LabelTrie], rows: dict[int, Float32Array]) -> None:
        """rows[t] is the head row of token t, shape (n_embd,), for every token on an edge of the tries."""
        self.n_positions = sum(len(trie.read) for trie in tries)
        """Hidden states that one query's scores read: prompt by prompt, each prompt's in the order of trie.read."""
        position: list[int] = []
        edge_row: list[Float32Array] = []
        node_start: list[int] = []
        label_edge: list[int] = []
        label_start: list[int] = []
        first_token: list[bool] = []
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
            n_positions += len(trie.read)
            for edges in trie.label_edges:
                label_start.append(len(label_edge))
                label_edge += [edge_base + edge for edge in edges]
            first_token += [trie.scoring == "first_token"] * len(trie.label_edges)
            self.first.append(self.first[-1] + len(trie.label_edges))
        self._position = np.array(position, np.intp)
        self._edge_rows = np.stack(edge_row).astype(np.float32)  # (n_edges, n_embd)
        self._node_start = np.array(node_start, np.intp)
        n_edges = np.diff([*node_start, len(position)]).astype(np.intp)
        self._node_of_edge = np.repeat(np.arange(len(node_start)), n_edges)
        self._label_edge = np.array(label_edge, np.intp)
        self._label_start = np.array(label_start, np.intp)
        self._first_token = np.array(first_token, np.bool_)

    def score(self, hidden: Float32Array, row: IndexArray) -> LabelScores:
        """Scores of n queries.

        hidden: (n_rows, n_embd) final-norm hidden states; row: (n_queries, n_positions) which row each read node is.
        Raises ScoreError where a hidden state is not finite.
        """
        # One dot product an edge: an order less work than hidden @ rows.T, whose BLAS threads also stall on a busy
        # machine. Measured on 2 busy cores, 95 edges of 4096: median 0.05 ms against 0.19, worst 4 ms against 150.
        with np.errstate(over="ignore", invalid="ignore"):  # what they would warn of is refused below
            edge = np.vecdot(hidden[row[:, self._position]], self._edge_rows)
            top = np.maximum.reduceat(edge, self._node_start, axis=1)
            shifted = edge - top[:, self._node_of_edge]
            log_sum = np.log(np.add.reduceat(np.exp(shifted), self._node_start, axis=1))
            log_softmax = shifted - log_sum[:, self._node_of_edge]
            log_probability = np.add.reduceat(log_softmax[:, self._label_edge], self._label_start, axis=1)
        if not np.isfinite(log_probability).all():
            raise ScoreError("a hidden state is not finite: the model file is damaged, or the compute type overflows")
        logit = edge[:, self._label_edge[self._label_start]]
        return LabelScores(
            score=np.where(self._first_token, logit, log_probability), probability=np.exp(log_probability)
        )
