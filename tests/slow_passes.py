"""How many passes a decode takes of a model with states, by cutting its batch token by token, as llama.cpp does."""

from __future__ import annotations

from qcls_gguf.plan.tree import Plan


def slow_passes(plan: Plan) -> int:
    """Of a plan, by the sequences of its tokens; what a token grows from is computed before it."""
    sets = [frozenset(plan.seq_id[plan.seq_offset[i] : plan.seq_offset[i + 1]].tolist()) for i in range(plan.n_tokens)]
    left = list(range(plan.n_tokens))
    n_passes = 0
    while left:
        chosen: list[frozenset[int]] = []
        for node in left:
            if not any(sets[node] & other for other in chosen):
                chosen.append(sets[node])
        n = min(sum(sets[node] == each for node in left) for each in chosen)
        taken = [node for each in chosen for node in [node for node in left if sets[node] == each][:n]]
        done = set(range(plan.n_tokens)) - set(left)
        for node in taken:  # what it grows from was computed before, or is in the same set
            parents = [other for other in range(node) if sets[other] >= sets[node] and plan.pos[other] < plan.pos[node]]
            assert all(parent in done or sets[parent] == sets[node] for parent in parents)
        left = [node for node in left if node not in taken]
        n_passes += 1
    return n_passes
