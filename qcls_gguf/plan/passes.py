"""The passes in which a model with states is computed for a decode, and token trees that take fewer of them.

A chain is a run of nodes of the token tree up to where it branches or ends; its tokens belong to the same sequences. A
pass takes equally many tokens of some chains, no two of which have a sequence in common. So a chain is computed before
the chains that grow from it (`llama_batch_allocr::split_equal` in src/llama-batch.cpp, without `sequential`, which a
unified cache does not need).

Two changes save passes. Padding may follow a leaf, whose sequence is emptied after the decode, so that one pass takes
it together with longer ones. And a chain may be fed once for each of its branches, in the branch's own sequence: both
then take one pass together, which pays if the chain is short or a pass is slow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

_Left = dict[int, int]
"""For each chain that can be computed next (the chain that it grows from is): how many of its tokens are left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chains:
    """The chains of a tree; each comes after the chain that it grows from. A chain without children ends in a leaf."""

    length: list[int]
    """(n_chains,) number of nodes"""
    children: list[list[int]]
    """(n_chains,) the chains that grow from its end: none, or more than one"""
    roots: list[int]
    """the chains that grow from a cached prefix"""

    @property
    def n_tokens(self) -> int:
        """Nodes of the tree."""
        return sum(self.length)


def chains_of(parent: Sequence[int]) -> tuple[Chains, list[int]]:
    """The chains of a tree, and (n_nodes,) the chain of each node.

    parent: (n_nodes,) the node that each grows from, which comes before it; negative for a cached prefix, which is no
    node.
    """
    n_children = [0] * len(parent)
    for above in parent:
        if above >= 0:
            n_children[above] += 1
    chains = Chains(length=[], children=[], roots=[])
    chain_of: list[int] = []
    for above in parent:
        if above >= 0 and n_children[above] == 1:
            chain = chain_of[above]
            chains.length[chain] += 1
        else:
            chain = add_chain(chains, 1, None if above < 0 else chain_of[above])
        chain_of.append(chain)
    return chains, chain_of


def add_chain(chains: Chains, length: int, above: int | None) -> int:
    """Add a chain below another one, or below a cached prefix, and return it."""
    chain = len(chains.length)
    chains.length.append(length)
    chains.children.append([])
    (chains.roots if above is None else chains.children[above]).append(chain)
    return chain


def count_passes(chains: Chains, padding: Mapping[int, int] | None = None) -> int:
    """The passes of a decode of this tree with a model that keeps a state of each sequence.

    padding: by chain, the number of tokens that are added after its leaf.
    """
    more = padding or {}
    left, n_passes = {chain: chains.length[chain] + more.get(chain, 0) for chain in chains.roots}, 0
    while left:
        n_passes += 1
        left = _taken(chains, left, min(left.values()), more)
    return n_passes


def leaf_padding(chains: Chains, pass_tokens: int, n_most: int) -> dict[int, int]:
    """By chain, how many tokens to add after its leaf to save passes.

    A saved pass is worth pass_tokens tokens; n_most: tokens that may be added in all.
    """
    left, padding = {chain: chains.length[chain] for chain in chains.roots}, dict[int, int]()
    while left:
        leaves = {chain: length for chain, length in left.items() if not chains.children[chain]}
        inner = [length for chain, length in left.items() if chain not in leaves]
        n = _best_length([*leaves.values()], inner, pass_tokens, n_most)
        for chain, length in leaves.items():
            if length < n:
                padding[chain] = n - length
                n_most -= n - length
        left = _taken(chains, left, n, {})
    return padding


def _taken(chains: Chains, left: _Left, n: int, more: Mapping[int, int]) -> _Left:
    """The tokens left after a pass that takes at most n tokens of each chain. more: padding by chain."""
    after: _Left = {}
    for chain, length in left.items():
        if length > n:
            after[chain] = length - n
        else:
            after.update((child, chains.length[child] + more.get(child, 0)) for child in chains.children[chain])
    return after


def _best_length(leaves: Sequence[int], inner: Sequence[int], pass_tokens: int, n_most: int) -> int:
    """How many tokens a pass should take of each chain.

    leaves: how many tokens are left of each chain that ends in a leaf, which padding can make longer; inner: of each
    chain that branches, of which a pass cannot take more. Without padding each distinct number takes a pass of its own.
    """
    shortest = min([*leaves, *inner])
    longest = min(inner) if inner else max(leaves)
    best, least = shortest, 0
    for n in sorted({length for length in (*leaves, *inner) if shortest < length <= longest}):
        shorter = [length for length in leaves if length < n]
        n_added = sum(n - length for length in shorter)
        cost = n_added - pass_tokens * len(set(shorter))
        if n_added <= n_most and cost < least:
            best, least = n, cost
    return best


class UnsharedTrees:
    """A tree, and the trees in which some of its chains are unshared: fed once for each of their branches.

    The level of a chain is the number of chains above it. A tree is unshared by levels.
    """

    def __init__(self, parent: Sequence[int]) -> None:
        """parent: (n_nodes,) as `chains_of` takes them."""
        self._parent = parent
        self.chains, self._chain_of = chains_of(parent)
        self._above: list[int | None] = [None] * len(self.chains.length)
        self._level = [0] * len(self.chains.length)
        for chain, children in enumerate(self.chains.children):
            for child in children:
                self._above[child], self._level[child] = chain, self._level[chain] + 1
        self._n_levels = max(self._level, default=0)

    def level_ranges(self) -> Iterator[range]:
        """The ranges of levels whose chains may be unshared together."""
        for start in range(self._n_levels):
            for stop in range(start + 1, self._n_levels + 1):
                yield range(start, stop)

    def copies(self, levels: range) -> list[int]:
        """(n_chains,) how often each chain is fed if the chains of these levels are unshared."""
        copies = [1] * len(self._level)
        for chain in range(len(copies) - 1, -1, -1):
            children = self.chains.children[chain]
            if children and self._level[chain] in levels:
                copies[chain] = sum(copies[child] for child in children)
        return copies

    def n_tokens(self, copies: Sequence[int]) -> int:
        """The number of nodes of the tree in which chain c is fed copies[c] times."""
        return sum(n * length for n, length in zip(copies, self.chains.length, strict=True))

    def chains_of_copies(self, copies: Sequence[int]) -> Chains:
        """The chains of the tree in which chain c is fed copies[c] times; a copy and its one branch are one chain."""
        chains = Chains(length=[], children=[], roots=[])
        of: list[list[int]] = [[] for _ in copies]  # the copies of each chain; the last one gets the next branch
        for chain, (above, length) in enumerate(zip(self._above, self.chains.length, strict=True)):
            if above is not None and copies[above] > 1:
                mine = [of[above].pop() for _ in range(copies[chain])]
                for copy in mine:
                    chains.length[copy] += length
            else:
                grows_from = None if above is None else of[above][0]
                mine = [add_chain(chains, length, grows_from) for _ in range(copies[chain])]
            of[chain] = mine
        return chains

    def nodes_of_copies(self, copies: Sequence[int]) -> tuple[list[int], list[int]]:
        """The tree in which chain c is fed copies[c] times, as (origin, parents): node i is a copy of origin[i] and
        grows from parents[i].

        The copies of a node are neighbours, and come in the order of the nodes.
        """
        of_node = [copies[chain] for chain in self._chain_of]
        first = [0, *accumulate(of_node)]
        origin = [node for node, n in enumerate(of_node) for _ in range(n)]
        parents: list[int] = []
        n_taken = [0] * len(of_node)  # copies of a node that have a child
        for node, above in enumerate(self._parent):
            for _ in range(of_node[node]):
                if above < 0:
                    parents.append(above)
                elif of_node[above] == 1:
                    parents.append(first[above])
                else:
                    parents.append(first[above] + n_taken[above])
                    n_taken[above] += 1
        return origin, parents
