"""The passes in which a model with states is computed for a decode: llama.cpp cuts such a batch into them.

A recurrent layer takes in each pass equally many tokens of every set of sequences in it, and no two sets with a
sequence in common: a token tree's trunk comes before its branches (`llama_batch_allocr::split_equal` in
src/llama-batch.cpp, without `sequential`, which a unified cache does not need).

What stands behind a leaf changes nothing before it, and its sequence is emptied after the decode: tokens that nobody
reads may follow a leaf, so that a pass takes it together with longer ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from .tree import Plan

_Left = dict[int, list[int]]
"""The nodes that are not computed yet of each set of sequences, which is a bit mask; the next one stands last."""


def count_passes(plan: Plan) -> int:
    """The passes of a decode of this plan with a model that keeps a state of each sequence."""
    left, n_passes = _nodes(plan), 0
    while left:
        n_passes += 1
        together = _together(left)
        _take(left, together, min(len(left[each]) for each in together))
    return n_passes


def leaf_padding(plan: Plan, pass_tokens: int, n_most: int) -> dict[int, int]:
    """By leaf node how many tokens more behind it save passes.

    A pass that is saved is worth pass_tokens; n_most: tokens that may be added in all.
    """
    left, padding = _nodes(plan), dict[int, int]()
    while left:
        together = _together(left)
        leaves = [each for each in together if each.bit_count() == 1]
        n = _best_length(
            [len(left[each]) for each in leaves],
            [len(left[each]) for each in together if each.bit_count() > 1],
            pass_tokens,
            n_most,
        )
        for each in leaves:
            if (n_added := n - len(left[each])) > 0:
                padding[left[each][0]] = n_added
                n_most -= n_added
        _take(left, together, n)
    return padding


def _best_length(leaves: Sequence[int], inner: Sequence[int], pass_tokens: int, n_most: int) -> int:
    """How many tokens a pass should take of each set, by the numbers that are left of leaves and of inner sets.

    Inner sets, which branch further on, cannot take more than they have. Each length that is passed over saves a pass.
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


def _nodes(plan: Plan) -> _Left:
    left: _Left = {}
    for node in range(plan.n_tokens - 1, -1, -1):
        start, end = plan.seq_offset[node], plan.seq_offset[node + 1]
        left.setdefault(sum(1 << seq for seq in plan.seq_id[start:end].tolist()), []).append(node)
    return left


def _together(left: _Left) -> list[int]:
    """The sets of the next pass: in the order of their next nodes, each that has no sequence of one before it."""
    taken, together = 0, []
    for sequences in sorted(left, key=lambda each: left[each][-1]):
        if not sequences & taken:
            taken |= sequences
            together.append(sequences)
    return together


def _take(left: _Left, together: Sequence[int], n: int) -> None:
    """n tokens of each set are computed, or all it has."""
    for sequences in together:
        del left[sequences][-n:]
        if not left[sequences]:
            del left[sequences]
