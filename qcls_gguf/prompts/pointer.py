"""The pointer head of a decision model, which compares the state at each option's end with that at the prompt's end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..config.scoring import TREE
from ..errors import ConfigError
from ..statistics import Float32Array
from .trie import Edge, LabelTrie


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pointer:
    """A pointer head, which answers a prompt whose labels are options in its text: option i has the score q · k_i / √n.

    q = query @ z + query_bias, where z (n_embd,) is the final-norm hidden state of the prompt's last token;
    k_i = z_i @ key + key_bias, where z_i is that of the token that ends option i.
    """

    reads_labels: ClassVar[bool] = False
    """It needs no scores of the labels' texts."""
    text: ClassVar[None] = None
    digest: ClassVar[str] = "pointer"
    """A model has one."""

    depth: int
    """all layers"""
    end: int
    """the token that ends an option"""
    query: Float32Array
    """(n, n_embd)"""
    query_bias: Float32Array
    """(n,)"""
    key: Float32Array
    """(n_embd, n)"""
    key_bias: Float32Array
    """(n,)"""

    def trie(self, closing: Sequence[int], n_labels: int) -> tuple[list[int], LabelTrie]:
        """(the prompt's last tokens up to the first option's end, the trie that feeds the others and reads the ends).

        closing: the tokens after the fragment with the query, which show the options. Its edges are the options, then
        the prompt's end. Raises ConfigError where there are other options.
        """
        ends = [index for index, token in enumerate(closing) if token == self.end]
        if len(ends) != n_labels or closing[-1] == self.end:
            raise ConfigError(f"the model's template shows {len(ends)} of {n_labels} options after the text")
        first = ends[0]
        read = tuple(index - first for index in (*ends, len(closing) - 1))
        trie = LabelTrie(
            scoring=TREE,
            fed=tuple(enumerate(closing[first + 1 :])),
            read=read,
            edges=tuple(Edge(node=node, token=self.end) for node in read),
            label_edges=tuple((label,) for label in range(n_labels)),
            is_exact=False,
        )
        return list(closing[: first + 1]), trie
