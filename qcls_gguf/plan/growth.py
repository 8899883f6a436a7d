"""Plans of decodes, by growing the token tree of what prompts add for queries; as few decodes as the limits allow.

Pure functions of tokens and limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..prompts.compiled import Prompt
from ..prompts.trie import LabelTrie
from ..statistics import Int32Array, IntArray
from .tree import Plan, Root, TokenTree


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The limits of one decode."""

    n_seqs: int
    """leaves of the token tree: each decodes in one of the sequences 0 … n_seqs - 1"""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePlan:
    """One decode: its plan, and the row of the hidden state that each edge of its label tries reads."""

    plan: Plan
    leaf_roots: tuple[Root, ...]
    """where each leaf of the plan grows from"""
    rows: IntArray
    """(n_edges,) addition by addition, each addition's in the order of its trie's edges"""

    def leaves_of(self, edges: IntArray) -> Int32Array:
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
        return [together.finish()]
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
    return [_Growth(group).finish() for group in groups]


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

    def finish(self) -> DecodePlan:
        plan = self._tree.finish(range(self._tree.n_leaves()))
        roots = tuple(self._roots[root] for root in plan.leaf_root)
        return DecodePlan(plan=plan, leaf_roots=roots, rows=plan.node_row[self._read])
