"""How often a model with states is computed for a decode: llama.cpp cuts such a batch into passes.

A recurrent layer takes in each pass equally many tokens of every set of sequences that is in it, and no two sets with a
sequence in common: a token tree's trunk comes before its branches (`llama_batch_allocr::split_equal` in
src/llama-batch.cpp, without `sequential`, which a unified cache does not need).
"""

from __future__ import annotations

from .tree import Plan


def count_passes(plan: Plan) -> int:
    """The passes of a decode of this plan with a model that keeps a state of each sequence."""
    tokens: dict[int, list[int]] = {}  # of each sequence set, as a bit mask, those that are left, the next one last
    for node in range(plan.n_tokens - 1, -1, -1):
        start, end = plan.seq_offset[node], plan.seq_offset[node + 1]
        sequences = sum(1 << seq for seq in plan.seq_id[start:end].tolist())
        tokens.setdefault(sequences, []).append(node)
    n_passes = 0
    while tokens:
        n_passes += 1
        taken, sets = 0, []
        for sequences in sorted(tokens, key=lambda each: tokens[each][-1]):
            if not sequences & taken:
                taken |= sequences
                sets.append(sequences)
        n = min(len(tokens[sequences]) for sequences in sets)
        for sequences in sets:
            del tokens[sequences][-n:]
            if not tokens[sequences]:
                del tokens[sequences]
    return n_passes
