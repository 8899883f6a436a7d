"""Contexts with more sequences than stock llama.cpp allows (patch 9), and what must still be refused."""

import re

import numpy as np
import oracle
import pytest
from conftest import OpenContext
from oracle import Float32Array, Node, decode_sequence

from qcls_gguf.errors import DecodeError, PlanError
from qcls_gguf.native import NativeContext, NativeModel, build_info

Tokens = list[tuple[int, int, list[int]]]
"""(token, position, sequences) of each"""


def decode(context: NativeContext, tokens: Tokens) -> Float32Array:
    return oracle.decode(context, [Node(*each) for each in tokens])


def test_a_thousand_sequences(model: NativeModel, open_context: OpenContext) -> None:
    """A beginning of 5 tokens in 1,000 sequences, four of which grow on: one token together, then one each."""
    n = 1000
    context = open_context(model, n_ctx=2048, n_batch=n, n_outputs_max=n, n_seq_max=n, flash_attn=False)
    beginning = [10, 20, 30, 40, 50]
    whole = decode_sequence(open_context(model, flash_attn=False), [*beginning, 60, 70])
    rows = decode(context, [(token, pos, list(range(n))) for pos, token in enumerate(beginning)])
    np.testing.assert_allclose(rows, whole[:5], rtol=0, atol=1e-4)
    some = [0, 255, 256, n - 1]
    rows = decode(context, [(60, 5, some), *((70 + i, 6, [seq]) for i, seq in enumerate(some))])
    np.testing.assert_allclose(rows[:2], whole[5:], rtol=0, atol=1e-4)
    context.trim(np.array(some, np.int32), np.full(4, 5, np.int32))
    rows = decode(context, [(60, 5, [300]), (70, 6, [300])])
    np.testing.assert_allclose(rows, whole[5:], rtol=0, atol=1e-4)


def test_no_more_sequences_than_the_limit(model: NativeModel, open_context: OpenContext) -> None:
    n = build_info().max_sequences
    sizes = {"n_ctx": 8192, "n_batch": n + 1, "n_outputs_max": n + 1}
    open_context(model, n_seq_max=n, **sizes).close()
    with pytest.raises(PlanError, match=re.escape(f"n_seq_max is {n + 1}: it must be between 1 and {n}")):
        open_context(model, n_seq_max=n + 1, **sizes)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([(1, 0, [1]), (2, 1, [1])], "must remain consecutive|inconsistent sequence positions"),
        ([(1, 3, [1]), (2, 5, [1])], "not continuous"),
        ([(1, 3, [1]), (2, 4, [1]), (3, 3, [1])], "decreasing"),
        ([(1, 4, [1, 2]), (2, 5, [1])], "diverged|inconsistent"),
        ([(1, 3, [1, 3]), (2, 4, [1])], "divereged|inconsistent"),
    ],
    ids=["overlap", "gap", "decreasing", "unequal", "one empty"],
)
def test_what_is_no_tree_is_refused(
    tokens: Tokens, message: str, model: NativeModel, open_context: OpenContext
) -> None:
    context = open_context(model, flash_attn=False)
    decode(context, [(5, 0, [1]), (6, 1, [1]), (7, 2, [1]), (8, 0, [2]), (9, 1, [2])])
    with pytest.raises(DecodeError, match=message):
        decode(context, tokens)
    assert decode(context, [(9, 3, [1])]).shape == (1, context.row_size)
