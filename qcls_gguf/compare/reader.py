"""From logits, or from a few log-probabilities, at the nodes of a label trie to label scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..config.scoring import TREE
from ..prompts.trie import build_trie
from ..score.log_space import FloatArray, log_softmax, log_sum_exp


class LabelReader:
    """Reads the labels of one prompt at the nodes of its trie that offer a choice: one node where all first tokens
    differ, as `tree` scores them."""

    def __init__(self, labels: Sequence[str], paths: Sequence[tuple[int, ...]]) -> None:
        """paths[i] are the tokens of labels[i], with the end-of-label token where it has one."""
        self.labels = tuple(labels)
        self.paths = tuple(paths)
        self.trie = build_trie(labels, paths, -1, TREE)
        at: dict[int, list[int]] = {node: [] for node in self.trie.read}
        for index, edge in enumerate(self.trie.edges):
            at[edge.node].append(index)
        self._edges = [at[node] for node in self.trie.read]
        self.edge_tokens = [np.array([self.trie.edges[i].token for i in edges], np.intp) for edges in self._edges]
        """for each read node the tokens of its edges"""
        first = [path[0] for path in self.paths]
        self.distinct = len(set(first)) == len(first)
        """whether first tokens alone tell the labels apart"""

    def node_path(self, node: int) -> tuple[int, ...]:
        """The tokens between the end of the prompt and a node."""
        path: tuple[int, ...] = ()
        while node:
            node, token = self.trie.fed[node - 1]
            path = (token, *path)
        return path

    def tree(self, edge_logits: Sequence[FloatArray]) -> tuple[float, ...]:
        """Log-probabilities among the labels; edge_logits[i] are the logits of edge_tokens[i]."""
        edge = np.zeros(len(self.trie.edges))
        for edges, logits in zip(self._edges, edge_logits, strict=True):
            edge[edges] = log_softmax(np.asarray(logits, np.float64))
        return tuple(float(edge[list(edges)].sum()) for edges in self.trie.label_edges)

    def joint(self, edge_logits: Sequence[FloatArray], log_sums: Sequence[float]) -> tuple[float | None, ...]:
        """log p(label | prompt) of the labels all of whose tokens are read; log_sums[i] is node i's log-sum-exp."""
        edge = np.zeros(len(self.trie.edges))
        for edges, logits, log_sum in zip(self._edges, edge_logits, log_sums, strict=True):
            edge[edges] = np.asarray(logits, np.float64) - log_sum
        return tuple(
            float(edge[list(edges)].sum()) if len(edges) == len(path) else None
            for edges, path in zip(self.trie.label_edges, self.paths, strict=True)
        )

    def winner(self, scores: Sequence[float]) -> str:
        """The label with the highest score."""
        return self.labels[int(np.argmax(scores))]

    def first_tokens(
        self, log_probs: Mapping[int, float]
    ) -> tuple[str | None, tuple[float, ...] | None, tuple[float | None, ...]]:
        """(winner, tree, joint) from the log-probabilities of some tokens behind the prompt, by token.

        The winner is None where no label's first token is among them, or where several labels share the best one.
        """
        seen = [log_probs.get(path[0]) for path in self.paths]
        joint = tuple(p if len(path) == 1 else None for p, path in zip(seen, self.paths, strict=True))
        values = [p for p in seen if p is not None]
        if not values:
            return None, None, joint
        best = [label for label, p in zip(self.labels, seen, strict=True) if p == max(values)]
        whole = self.distinct and len(values) == len(seen)
        tree = tuple(log_softmax(np.array(values)).tolist()) if whole else None
        return best[0] if len(best) == 1 else None, tree, joint


def log_normaliser(logits: FloatArray) -> float:
    """The log-sum-exp of the logits of a whole vocabulary."""
    return float(log_sum_exp(np.asarray(logits, np.float64)))
