"""The token tree of a request: which tokens are fed, where, for which sequences, and which rows come back.

Pure Python and numpy: no model, no ctypes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import PlanError
from ..statistics import BoolArray, Int32Array, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """Where a plan branches off: the first n_cached positions of a cached prefix, whose cells `holder` holds."""

    holder: int
    """the sequence that holds the prefix"""
    n_cached: int

    def kept(self, seq: int, n_kept: int) -> KeptRoot:
        """The root that is n_kept tokens after this one; sequence seq has the cells of these tokens."""
        return KeptRoot(holder=self.holder, n_cached=self.n_cached + n_kept, prefix=self, seq=seq)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRoot(Root):
    """Where a plan branches off after the first tokens of a kept query, which n_cached includes."""

    prefix: Root
    """the cached prefix, which these tokens follow"""
    seq: int
    """the sequence that has their cells"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The input of one llama_decode, as flat arrays over the nodes of a token tree. A token comes after its parent."""

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
    leaf_root: tuple[int, ...]
    """(n_leaves,) the number of the root that each leaf grows from"""
    n_outputs: int

    @property
    def n_tokens(self) -> int:
        return len(self.token)

    @property
    def n_leaves(self) -> int:
        return len(self.leaf_root)

    def part(self, start: int, end: int) -> tuple[Int32Array, Int32Array, Int32Array, Int32Array, BoolArray]:
        """The arrays of the tokens [start, end), as a decode takes them; those before them are decoded already."""
        offset = self.seq_offset[start : end + 1]
        return self.token[start:end], self.pos[start:end], offset, self.seq_id, self.output[start:end]

    @property
    def node_row(self) -> IntArray:
        """(n_tokens,) the output row of a node, -1 where it is not read."""
        return np.where(self.output, np.cumsum(self.output) - 1, -1)


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
        self._root_pos: list[int] = []  # the first position after each root

    def __len__(self) -> int:
        return len(self._token)

    def add_root(self, n_cached: int) -> int:
        """A new root whose first n_cached positions are cached; returns its handle, a parent for `add_path`."""
        self._root_pos.append(n_cached)
        return ~(len(self._root_pos) - 1)

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
                self._pos.append(self._pos[parent] + 1 if parent >= 0 else self._root_pos[~parent])
                self._parent.append(parent)
                if parent >= 0:
                    self._inner.add(parent)
            parent = node
        return parent

    def read(self, node: int) -> None:
        """Make the plan return the hidden state of a node. Raises PlanError for a root."""
        if node < 0:
            raise PlanError("the hidden state of a cached prefix was asked for: feed at least its last token")
        self._read.add(node)

    def is_leaf(self, node: int) -> bool:
        """Whether nothing grows below a node."""
        return node >= 0 and node not in self._inner

    def n_leaves(self) -> int:
        """How many sequences the tree needs."""
        return len(self._token) - len(self._inner)

    def finish(self, leaf_seqs: Sequence[int]) -> Plan:
        """The tree as arrays; leaf l, in the order of its node, decodes in sequence leaf_seqs[l].

        Raises PlanError where there are fewer sequences than leaves.
        """
        n = len(self._token)
        seqs: list[list[int]] = [[] for _ in range(n)]
        leaves = [node for node in range(n) if node not in self._inner]
        if len(leaves) > len(leaf_seqs):
            raise PlanError(f"{len(leaves)} leaves need {len(leaves)} sequences, and there are {len(leaf_seqs)}")
        for leaf, seq in zip(leaves, leaf_seqs, strict=False):
            seqs[leaf].append(seq)
        root = [0] * n  # the number of each node's root
        for node in range(n):
            parent = self._parent[node]
            root[node] = root[parent] if parent >= 0 else ~parent
        for node in range(n - 1, -1, -1):  # children come after their parent
            if self._parent[node] >= 0:
                seqs[self._parent[node]] += seqs[node]
        output = np.zeros(n, np.bool_)
        output[list(self._read)] = True
        return Plan(
            token=np.array(self._token, np.int32),
            pos=np.array(self._pos, np.int32),
            seq_offset=np.cumsum([0, *map(len, seqs)], dtype=np.int32),
            seq_id=np.array([seq for node_seqs in seqs for seq in node_seqs], np.int32),
            output=output,
            leaf_root=tuple(root[leaf] for leaf in leaves),
            n_outputs=len(self._read),
        )
