"""The inputs of the decodes of a request, and the token tree that they are made from: which tokens are fed, where, for
which sequences; and changes to such inputs.

Pure functions of tokens and limits: no model, no ctypes. A shape is a number of tokens, of leaves and of hidden states:
a graph that is kept for one decode of a shape serves the next one. Batches of equally many queries of one prompt set
have the last two in common, so a few token counts, the rungs, make few shapes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from ..errors import PlanError
from ..prompts.compiled import Prompt
from ..prompts.trie import LabelTrie
from ..statistics import BoolArray, Int32Array, IntArray

_STEPS = 8
"""rungs from one power of two to the next: decodes get 4 to 5 % more tokens, and have some 20 to 40 shapes"""
_LEAST_STEP = 8
"""tokens: GPUs multiply so many columns at once, so that a smaller step would not be faster"""
_UNREAD = 0
"""the token of the padding"""


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
    """(n_leaves,) where a leaf grows from; leaf l decodes in sequence l"""
    rows: IntArray
    """(n_edges,) the row that an edge of the label tries reads, prompt by prompt, in the order of a trie's edges"""
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

        leaf_seqs: the sequences of the leaves, in the order of their nodes; None: 0, 1, …; edges: the nodes that the
        edges of the label tries read; n_cached, fast_path: as in the input. Raises PlanError for fewer sequences than
        leaves.
        """
        n = len(self._token)
        seqs: list[list[int]] = [[] for _ in range(n)]
        leaves = [node for node in range(n) if node not in self._inner]
        leaf_seqs = range(len(leaves)) if leaf_seqs is None else leaf_seqs
        if len(leaves) > len(leaf_seqs):
            raise PlanError(f"{len(leaves)} leaves need {len(leaves)} sequences, and there are {len(leaf_seqs)}")
        for leaf, seq in zip(leaves, leaf_seqs, strict=False):
            seqs[leaf].append(seq)
        root_of = [0] * n  # the number of a node's root
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The limits of one decode."""

    n_seqs: int
    """leaves of the token tree: leaf l decodes in sequence l"""
    n_tokens: int
    n_rows: int
    """hidden states that come back"""

    def holds(self, n_seqs: int, n_tokens: int, n_rows: int) -> bool:
        """Whether one decode can be so large."""
        return n_seqs <= self.n_seqs and n_tokens <= self.n_tokens and n_rows <= self.n_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """The part of the token tree that one prompt needs for one query."""

    trie: LabelTrie
    root: Root
    tokens: list[int]
    """after the cached prefix, up to where the label begins"""
    fast_path: bool
    """whether the whole prefix of the prompt comes from the cache"""

    @property
    def size(self) -> tuple[int, int, int]:
        """The most leaves, tokens and hidden states that it adds to a decode."""
        return self.trie.n_leaves, len(self.tokens) + len(self.trie.fed), len(self.trie.read)


def addition_of(prompt: Prompt, holder: int, fragment: list[int]) -> Addition:
    """The addition of a prompt for one query.

    holder: the sequence that holds its prefix; fragment: the tokens of its fragment with the query in it. Raises
    PlanError where there is nothing to feed.
    """
    n_cached, tokens = prompt.new_tokens(fragment)
    root, fast_path = Root(holder, n_cached), n_cached == len(prompt.prefix)
    return Addition(trie=prompt.trie, root=root, tokens=tokens, fast_path=fast_path)


def plan_decodes(additions: Sequence[Addition], capacity: Capacity) -> tuple[DecodeInput, ...]:
    """One decode if it holds all additions; else several, for consecutive groups that fit even if they share no token.

    Each addition by itself must fit the capacity; `check_capacity` of the engine checks that.
    """
    tree, edges = _grown(additions)
    if capacity.holds(tree.n_leaves, len(tree), tree.n_rows):
        return (_finished(tree, edges, additions),)
    groups: list[list[Addition]] = []
    size = (0, 0, 0)
    for addition in additions:
        n_seqs, n_tokens, n_rows = (n + n_more for n, n_more in zip(size, addition.size, strict=True))
        if groups and capacity.holds(n_seqs, n_tokens, n_rows):
            groups[-1].append(addition)
            size = n_seqs, n_tokens, n_rows
        else:
            groups.append([addition])
            size = addition.size
    return tuple([_finished(*_grown(group), group) for group in groups])


def _grown(additions: Sequence[Addition]) -> tuple[TokenTree, list[int]]:
    """The token tree of some additions, and the node that every edge of their label tries reads."""
    tree, edges, handles = TokenTree(), list[int](), dict[Root, int]()
    for addition in additions:
        if addition.root not in handles:
            handles[addition.root] = tree.add_root(addition.root)
        nodes = [tree.add_path(handles[addition.root], addition.tokens)]
        for parent, token in addition.trie.fed:
            nodes.append(tree.add_path(nodes[parent], (token,)))
        for node in addition.trie.read:
            tree.read(nodes[node])
        edges += [nodes[edge.node] for edge in addition.trie.edges]
    return tree, edges


def _finished(tree: TokenTree, edges: Sequence[int], additions: Sequence[Addition]) -> DecodeInput:
    n_cached = sum(addition.root.n_cached for addition in additions)
    return tree.finish(edges=edges, n_cached=n_cached, fast_path=[addition.fast_path for addition in additions])


def side_by_side(decodes: Sequence[DecodeInput]) -> DecodeInput:
    """One decode of all these, which share no node, as `plan_decodes` would make it.

    It grows no token tree, and so takes 0.2 ms instead of 1.2 for four queries of eight prompts.
    """
    first_leaf = [0, *accumulate(len(decode.roots) for decode in decodes)]
    first_row = [0, *accumulate(decode.n_rows for decode in decodes)]
    first_pair = [0, *accumulate(len(decode.seq_id) for decode in decodes)]
    starts = [decode.seq_offset[:-1] + np.int32(n) for decode, n in zip(decodes, first_pair, strict=False)]
    return DecodeInput(
        token=np.concatenate([decode.token for decode in decodes]),
        pos=np.concatenate([decode.pos for decode in decodes]),
        seq_offset=np.concatenate([*starts, np.array(first_pair[-1:], np.int32)]),
        seq_id=np.concatenate(
            [decode.seq_id + np.int32(leaf) for decode, leaf in zip(decodes, first_leaf, strict=False)]
        ),
        output=np.concatenate([decode.output for decode in decodes]),
        n_rows=first_row[-1],
        roots=tuple([root for decode in decodes for root in decode.roots]),
        rows=np.concatenate([decode.rows + row for decode, row in zip(decodes, first_row, strict=False)]),
        n_cached=sum([decode.n_cached for decode in decodes]),
        fast_path=[is_fast for decode in decodes for is_fast in decode.fast_path],
    )


def rung(n_tokens: int) -> int:
    """The lowest rung of at least n_tokens: 8, 16, … 64, 72, … 128, 144, … 256, 288, …."""
    step = max(_LEAST_STEP, (1 << (n_tokens - 1).bit_length() - 1) // _STEPS) if n_tokens > 1 else _LEAST_STEP
    return -(-n_tokens // step) * step


def padded(decode: DecodeInput, *, most_tokens: int, n_positions: int) -> DecodeInput:
    """A decode, padded to the next rung, or to most_tokens, so that its shape repeats.

    The added tokens are not read. They follow the leaf that ends at the lowest position, where they change nothing.
    n_positions: how many positions of a sequence the model was trained for, <= 0 if that is not known; if the padding
    would exceed them, nothing is added.
    """
    n_more = min(rung(decode.n_tokens), most_tokens) - decode.n_tokens
    ends = np.zeros(len(decode.roots), np.int32)
    np.maximum.at(ends, decode.seq_id, np.repeat(decode.pos, np.diff(decode.seq_offset)))
    seq = int(ends.argmin())
    if n_more <= 0 or 0 < n_positions <= ends[seq] + n_more:
        return decode
    after = np.arange(1, n_more + 1, dtype=np.int32)
    return decode._replace(
        token=np.concatenate([decode.token, np.full(n_more, _UNREAD, np.int32)]),
        pos=np.concatenate([decode.pos, ends[seq] + after]),
        seq_offset=np.concatenate([decode.seq_offset, decode.seq_offset[-1] + after]),
        seq_id=np.concatenate([decode.seq_id, np.full(n_more, seq, np.int32)]),
        output=np.concatenate([decode.output, np.zeros(n_more, np.bool_)]),
    )
