"""One decode put together from those of several queries that have no token in common: no token tree has to be grown."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from .planner import DecodePlan
from .tree import Int32Array, Plan

_NONE = np.zeros(1, np.int32)


def joined(decodes: Sequence[DecodePlan], tokens: Sequence[Int32Array]) -> DecodePlan:
    """The decode that `plan_decodes` makes of what these decodes feed, if no two of them share a node.

    tokens: of each decode. Each has one pass and its leaves in sequences 0, 1, …; in the whole they follow each other.
    """
    plans = [each.plan for each in decodes]
    first_leaf = [0, *accumulate(plan.n_leaves for plan in plans)]
    first_root = [0, *accumulate(max(plan.leaf_root) + 1 for plan in plans)]
    first_row = [0, *accumulate(plan.n_outputs for plan in plans)]
    first_pair = [0, *accumulate(len(plan.seq_id) for plan in plans)]
    output = np.concatenate([plan.output for plan in plans])
    return DecodePlan(
        plan=Plan(
            token=np.concatenate(tokens),
            pos=np.concatenate([plan.pos for plan in plans]),
            seq_offset=np.concatenate(
                [_NONE, *[plan.seq_offset[1:] + np.int32(n) for plan, n in zip(plans, first_pair, strict=False)]]
            ),
            seq_id=np.concatenate(
                [plan.seq_id + np.int32(leaf) for plan, leaf in zip(plans, first_leaf, strict=False)]
            ),
            output=output,
            leaf_root=tuple([n + root for plan, root in zip(plans, first_root, strict=False) for n in plan.leaf_root]),
            node_row=np.where(output, np.cumsum(output, dtype=np.int32) - 1, -1).astype(np.int32),
            n_outputs=first_row[-1],
        ),
        leaf_roots=tuple([root for each in decodes for root in each.leaf_roots]),
        rows=np.concatenate([each.rows + row for each, row in zip(decodes, first_row, strict=False)]),
    )
