"""The passes in which a model with states is computed for a decode: llama.cpp cuts such a batch into them.

A recurrent layer takes in each pass equally many tokens of every set of sequences in it, and no two sets with a
sequence in common: a token tree's trunk comes before its branches (`llama_batch_allocr::split_equal` in
src/llama-batch.cpp, without `sequential`, which a unified cache does not need). The sets are the tree's chains.

What stands behind a leaf changes nothing before it, and its sequence is emptied after the decode: tokens that nobody
reads may follow a leaf, so that a pass takes it together with longer ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .chains import Chains

_Left = dict[int, int]
"""Tokens that are not computed yet of each chain whose parent is."""


def count_passes(chains: Chains, padding: Mapping[int, int] | None = None) -> int:
    """The passes of a decode of this tree with a model that keeps a state of each sequence.

    padding: tokens behind the leaves of chains.
    """
    more = padding or {}
    left, n_passes = {chain: chains.length[chain] + more.get(chain, 0) for chain in chains.roots}, 0
    while left:
        n_passes += 1
        left = _taken(chains, left, min(left.values()), more)
    return n_passes


def leaf_padding(chains: Chains, pass_tokens: int, n_most: int) -> dict[int, int]:
    """How many tokens more behind the leaf of a chain save passes, by chain.

    A pass that is saved is worth pass_tokens; n_most: tokens that may be added in all.
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
    """What is left when n tokens of each chain are computed, or all it has. more: tokens behind leaves of others."""
    after: _Left = {}
    for chain, length in left.items():
        if length > n:
            after[chain] = length - n
        else:
            after.update((child, chains.length[child] + more.get(child, 0)) for child in chains.children[chain])
    return after


def _best_length(leaves: Sequence[int], inner: Sequence[int], pass_tokens: int, n_most: int) -> int:
    """How many tokens a pass should take of each chain, by the numbers that are left of leaves and of inner chains.

    Inner chains, which branch further on, cannot take more than they have. Each length that is passed over saves a
    pass.
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
