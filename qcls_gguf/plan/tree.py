"""The input of a decode, and the token tree that it is made from: which tokens are fed, where, for which sequences.

Pure Python and numpy: no model, no ctypes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ..errors import PlanError
from ..statistics import BoolArray, Int32Array, IntArray


class Root(NamedTuple):
    """Where a tree branches off: the first n_cached positions of a cached prefix, whose cells `holder` holds."""

    holder: int
    """the sequence that holds the prefix"""
    n_cached: int


class DecodeInput(NamedTuple):
    """The input of one llama_decode, as flat arrays over the nodes of a token tree, and where its scores are read.

    A token comes after its parent. A request is a tuple of such decodes. A tuple, because a request makes them.
    """

    token: Int32Array
    """(n_tokens,)"""
    pos: Int32Array
    """(n_tokens,) position in the sequence: the depth in the tree"""
    seq_offset: Int32Array
    """(n_tokens + 1,) token i belongs to the sequences seq_id[seq_offset[i]:seq_offset[i + 1]]"""
    seq_id: Int32Array
    """(n_pairs,)"""
    output: BoolArray
    """(n_tokens,) whether the token's hidden state is read"""
    n_rows: int
    """tokens whose hidden state is read; row r is that of the r-th of them"""
    roots: tuple[Root, ...]
    """(n_leaves,) where each leaf grows from; leaf l decodes in sequence l"""
    rows: IntArray
    """(n_edges,) the row that each edge of the label tries reads, prompt by prompt, in the order of a trie's edges"""
    n_cached: int
    """tokens of the rendered prompts that come from the cache"""
    fast_path: list[bool]
    """(n_prompts,) whether the whole prefix of a prompt comes from the cache"""

    @property
    def n_tokens(self) -> int:
        """Tokens that are fed."""
        return len(self.token)


class TokenTree:
    """Grows from roots (cached prefixes) by paths of tokens; equal paths are one node.

    Nodes are numbered from 0 in the order in which they are added. A root is no node: its tokens are in the cache. As a
    parent, root r is given by its handle ~r, which is negative: -1 for root 0, -2 for root 1.
    """

    def __init__(self) -> None:
        self._token: list[int] = []
        self._pos: list[int] = []
        self._parent: list[int] = []  # a node, or the handle of a root
        self._child: dict[tuple[int, int], int] = {}
        self._inner: set[int] = set()  # nodes with children
        self._read: set[int] = set()
        self._roots: list[Root] = []

    def __len__(self) -> int:
        return len(self._token)

    def add_root(self, root: Root) -> int:
        """The handle of another root, a parent for `add_path`; paths below two roots share no node."""
        self._roots.append(root)
        return ~(len(self._roots) - 1)

    def add_path(self, parent: int, tokens: Iterable[int]) -> int:
        """Add a path below a node or a root and return its last node, or the parent if the path is empty.

        Nodes that exist already are used.
        """
        for token in tokens:
            node = self._child.get((parent, token))
            if node is None:
                node = len(self._token)
                self._child[parent, token] = node
                self._token.append(token)
                self._pos.append(self._pos[parent] + 1 if parent >= 0 else self._roots[~parent].n_cached)
                self._parent.append(parent)
                if parent >= 0:
                    self._inner.add(parent)
            parent = node
        return parent

    def read(self, node: int) -> None:
        """Let the decode return the hidden state of a node. Raises PlanError for a root."""
        if node < 0:
            raise PlanError("the hidden state of a cached prefix was asked for: feed at least its last token")
        self._read.add(node)

    def is_leaf(self, node: int) -> bool:
        """Whether nothing grows below a node."""
        return node >= 0 and node not in self._inner

    @property
    def n_leaves(self) -> int:
        """Sequences that the tree needs."""
        return len(self._token) - len(self._inner)

    @property
    def n_rows(self) -> int:
        """Hidden states that are read."""
        return len(self._read)

    def finish(
        self,
        leaf_seqs: Sequence[int] | None = None,
        *,
        edges: Sequence[int] = (),
        n_cached: int = 0,
        fast_path: Sequence[bool] = (),
    ) -> DecodeInput:
        """The tree as arrays.

        leaf_seqs: the sequence of each leaf, in the order of its node; None: 0, 1, …; edges: the node that each edge of
        the label tries reads; n_cached, fast_path: as in the input. Raises PlanError for fewer sequences than leaves.
        """
        n = len(self._token)
        seqs: list[list[int]] = [[] for _ in range(n)]
        leaves = [node for node in range(n) if node not in self._inner]
        leaf_seqs = range(len(leaves)) if leaf_seqs is None else leaf_seqs
        if len(leaves) > len(leaf_seqs):
            raise PlanError(f"{len(leaves)} leaves need {len(leaves)} sequences, and there are {len(leaf_seqs)}")
        for leaf, seq in zip(leaves, leaf_seqs, strict=False):
            seqs[leaf].append(seq)
        root_of = [0] * n  # the number of each node's root
        for node, parent in enumerate(self._parent):
            root_of[node] = root_of[parent] if parent >= 0 else ~parent
        for node in range(n - 1, -1, -1):  # children come after their parent
            if self._parent[node] >= 0:
                seqs[self._parent[node]] += seqs[node]
        output = np.zeros(n, np.bool_)
        output[list(self._read)] = True
        return DecodeInput(
            token=np.array(self._token, np.int32),
            pos=np.array(self._pos, np.int32),
            seq_offset=np.cumsum([0, *map(len, seqs)], dtype=np.int32),
            seq_id=np.array([seq for node_seqs in seqs for seq in node_seqs], np.int32),
            output=output,
            n_rows=len(self._read),
            roots=tuple([self._roots[root_of[leaf]] for leaf in leaves]),
            rows=(np.cumsum(output) - 1)[list(edges)],
            n_cached=n_cached,
            fast_path=list(fast_path),
        )
