"""Decodes of different token counts brought to few: a graph that is kept for one of a shape serves the next one.

A shape is a number of tokens, of leaves and of hidden states. Batches of equally many queries of one prompt set have
the last two in common, so a few token counts, the rungs, make few shapes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .planner import DecodePlan
from .tree import Int32Array

_STEPS = 8
"""rungs from a power of two to the next: a decode gets 4 to 5 % more tokens, and has one of some 20 to 40 shapes"""
_LEAST_STEP = 8
"""tokens: GPUs multiply as many columns at once, so that fewer would not be faster"""
_UNREAD = 0
"""the token that fills up"""


def rung(n_tokens: int) -> int:
    """The least rung that holds so many tokens: 8, 16, … 64, 72, … 128, 144, … 256, 288, …."""
    step = max(_LEAST_STEP, (1 << (n_tokens - 1).bit_length() - 1) // _STEPS) if n_tokens > 1 else _LEAST_STEP
    return -(-n_tokens // step) * step


def on_a_rung(
    decode: DecodePlan, token: Int32Array, *, most_tokens: int, n_positions: int
) -> tuple[DecodePlan, Int32Array]:
    """A decode, and its tokens (n_tokens,), with tokens that nobody reads up to the next rung, or to most_tokens.

    They stand behind the leaf that ends first, where they change nothing. n_positions: of a sequence, those that the
    model was trained for, <= 0 where that is not known; where they would not do, nothing is added.
    """
    plan = decode.plan
    n_more = min(rung(plan.n_tokens), most_tokens) - plan.n_tokens
    ends = np.zeros(plan.n_leaves, np.int32)
    np.maximum.at(ends, plan.seq_id, np.repeat(plan.pos, np.diff(plan.seq_offset)))
    seq = int(ends.argmin())
    if n_more <= 0 or 0 < n_positions <= ends[seq] + n_more:
        return decode, token
    fill = np.full(n_more, _UNREAD, np.int32)
    more = np.arange(1, n_more + 1, dtype=np.int32)
    padded = replace(
        plan,
        token=np.concatenate([plan.token, fill]),
        pos=np.concatenate([plan.pos, ends[seq] + more]),
        seq_offset=np.concatenate([plan.seq_offset, plan.seq_offset[-1] + more]),
        seq_id=np.concatenate([plan.seq_id, np.full(n_more, seq, np.int32)]),
        output=np.concatenate([plan.output, np.zeros(n_more, np.bool_)]),
        node_row=np.concatenate([plan.node_row, np.full(n_more, -1, np.int32)]),
    )
    return replace(decode, plan=padded), np.concatenate([token, fill])
