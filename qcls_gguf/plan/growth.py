"""Plans of decodes, by growing the token tree of what prompts add for queries; as few decodes as the limits allow.

Pure functions of tokens and limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..prompts.compiled import Prompt
from ..prompts.trie import LabelTrie
from .passes import Chains, UnsharedTrees, chains_of, count_passes, leaf_padding
from .tree import IndexArray, Int32Array, Plan, Root, TokenTree

_PADDING = 0
"""The token that is fed after leaves as padding; its row is not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The limits of one decode."""

    n_seqs: int
    """leaves of the token tree: each decodes in one of the sequences 0 … n_seqs - 1"""
    n_tokens: int
    n_rows: int
    """hidden states that come back"""
    pass_tokens: int | None = None
    """for a model whose decodes may take several passes, since it keeps a state of each sequence: the number of tokens
    that take as long as one more pass; None for others"""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePlan:
    """One decode: its plan, and the row of the hidden state that each edge of its label tries reads."""

    plan: Plan
    leaf_roots: tuple[Root, ...]
    """where each leaf of the plan grows from"""
    rows: IndexArray
    """(n_edges,) addition by addition, each addition's in the order of its trie's edges"""
    n_passes: int = 1
    """how often the model's weights are read for it"""

    def leaves_of(self, edges: IndexArray) -> Int32Array:
        """(n,) a leaf of the plan below the node that each of n edges reads; leaf l decodes in sequence l."""
        node = np.flatnonzero(self.plan.output)[self.rows[edges]]
        return self.plan.seq_id[self.plan.seq_offset[node]]


def additions_of(prompts: Sequence[Prompt], holders: Sequence[int], fragments: Sequence[list[int]]) -> list[Addition]:
    """The addition of each prompt of a set for one query.

    holders[i]: the sequence that holds the prefix of prompt i; fragments[i]: the tokens of its fragment with the query
    in it. Raises PlanError where there is nothing to feed.
    """
    additions = []
    for prompt, holder, fragment in zip(prompts, holders, fragments, strict=True):
        n_cached, tokens = prompt.new_tokens(fragment)
        root, fast_path = Root(holder=holder, n_cached=n_cached), n_cached == len(prompt.prefix)
        additions.append(Addition(trie=prompt.trie, root=root, tokens=tokens, fast_path=fast_path))
    return additions


def plan_decodes(additions: Sequence[Addition], capacity: Capacity) -> list[DecodePlan]:
    """One decode if it holds all additions; else several, for consecutive groups that fit even if they share no token.

    Each addition by itself must fit the capacity; `check_capacity` of the engine checks that.
    """
    together = _Growth(additions)
    if together.fits(capacity):
        return [together.finish(capacity)]
    groups: list[list[Addition]] = [[]]
    full = (capacity.n_seqs, capacity.n_tokens, capacity.n_rows)
    left = full
    for addition in additions:
        trie = addition.trie
        need = (trie.n_leaves, len(addition.tokens) + len(trie.fed), len(trie.read))
        if groups[-1] and any(n > room for n, room in zip(need, left, strict=True)):
            groups.append([])
            left = full
        groups[-1].append(addition)
        left = (left[0] - need[0], left[1] - need[1], left[2] - need[2])
    return [_Growth(group).finish(capacity) for group in groups]


class _Growth:
    """The token tree of some additions, and the node that each edge of their label tries reads."""

    def __init__(self, additions: Sequence[Addition]) -> None:
        self._tree = TokenTree()
        self._read: list[int] = []
        handles: dict[Root, int] = {}
        for addition in additions:
            handle = handles.get(addition.root)
            if handle is None:
                handle = handles[addition.root] = self._tree.add_root(addition.root.n_cached)
            nodes = [self._tree.add_path(handle, addition.tokens)]
            for parent, token in addition.trie.fed:
                nodes.append(self._tree.add_path(nodes[parent], (token,)))
            for node in addition.trie.read:
                self._tree.read(nodes[node])
            self._read += [nodes[edge.node] for edge in addition.trie.edges]
        self._roots = list(handles)

    def fits(self, capacity: Capacity) -> bool:
        return capacity.holds(self._tree.n_leaves(), len(self._tree), len(set(self._read)))

    def finish(self, capacity: Capacity) -> DecodePlan:
        if capacity.pass_tokens is None:
            return self._decode(self._tree.finish(range(self._tree.n_leaves())), self._read, n_passes=1)
        return self._in_few_passes(capacity.pass_tokens, capacity.n_tokens)

    def _decode(self, plan: Plan, read: Sequence[int], n_passes: int) -> DecodePlan:
        return DecodePlan(
            plan=plan,
            leaf_roots=tuple(self._roots[root] for root in plan.leaf_root),
            rows=plan.node_row[read],
            n_passes=n_passes,
        )

    def _in_few_passes(self, pass_tokens: int, n_most: int) -> DecodePlan:
        """The decode with the lowest cost in tokens; a pass costs pass_tokens. Chains of some levels may be fed once
        for each of their branches. n_most: the most tokens of the decode.
        """
        trees = UnsharedTrees(self._tree.parents)
        n_passes, least = _cost(trees.chains, pass_tokens, n_most)
        best: list[int] | None = None
        for levels in trees.level_ranges() if n_passes > 1 else ():
            copies = trees.copies(levels)
            n_tokens = trees.n_tokens(copies)
            if n_tokens > n_most or n_tokens + pass_tokens >= least:  # it would cost more even as a single pass
                continue
            n, cost = _cost(trees.chains_of_copies(copies), pass_tokens, n_most)
            if cost < least:
                best, n_passes, least = copies, n, cost
        tree, read = self._tree, self._read
        if best is not None:
            tree, first = tree.copied(*trees.nodes_of_copies(best))
            read = [first[node] for node in read]
        _pad(tree, pass_tokens, n_most)
        return self._decode(tree.finish(range(tree.n_leaves())), read, n_passes)


def _cost(chains: Chains, pass_tokens: int, n_most: int) -> tuple[int, int]:
    """(passes, cost in tokens, where a pass costs pass_tokens) of a tree with the padding after its leaves."""
    padding = leaf_padding(chains, pass_tokens, n_most - chains.n_tokens)
    n_passes = count_passes(chains, padding)
    return n_passes, chains.n_tokens + sum(padding.values()) + pass_tokens * n_passes


def _pad(tree: TokenTree, pass_tokens: int, n_most: int) -> None:
    """Add tokens after leaves if that saves passes; n_most: the most tokens of the tree."""
    chains, chain_of = chains_of(tree.parents)
    last = {chain: node for node, chain in enumerate(chain_of)}
    for chain, n in leaf_padding(chains, pass_tokens, n_most - len(tree)).items():
        tree.add_path(last[chain], [_PADDING] * n)
