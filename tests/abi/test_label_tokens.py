"""Label tokens of an open context: set, changed, removed and refused."""

from typing import Any

import numpy as np
import pytest
from conftest import MakeModel, OpenContext
from oracle import Float32Array, decode_sequence

from qcls_gguf.errors import PlanError
from qcls_gguf.native import NativeContext, NativeModel
from qcls_gguf.statistics import Int32Array

TOKENS = [5, 6, 7, 8]
NONE = np.empty(0, np.int32)


def label_tokens(*ids: int) -> Int32Array:
    return np.array(ids, np.int32)


def decode_again(context: NativeContext) -> Float32Array:
    """The rows of all of TOKENS, in an empty sequence 0."""
    zero = np.zeros(1, np.int32)
    context.trim(zero, zero)
    return decode_sequence(context, TOKENS)


@pytest.mark.parametrize("types", [{}, {"head_type": "Q6_K", "weight_type": "Q8_0"}], ids=["f32", "q8_0"])
@pytest.mark.parametrize("n_shapes", [0, 4])
def test_rows_are_those_of_a_context_opened_with_the_tokens(
    n_shapes: int, types: dict[str, str], make_model: MakeModel, open_context: OpenContext
) -> None:
    """Set, lengthened, reordered, shortened and removed, at one shape of decode, whose graph must not be kept."""
    path = make_model(**types)
    context = open_context(path)
    context.keep_shapes(n_shapes)
    plain = decode_again(context)
    n_embd = context.row_size
    for wanted in ((3,), (3, 9, 4), (4, 3, 9), (9, 9), (11,)):
        tokens = label_tokens(*wanted)
        context.set_label_tokens(tokens)
        assert context.row_size == n_embd + len(wanted) + 1
        with open_context(path, label_tokens=tokens) as opened:
            expected = decode_again(opened)
        for _ in range(2):  # the second of them reuses the graph
            assert (decode_again(context) == expected).all()
        np.testing.assert_array_equal(expected[:, :n_embd], plain)
    context.set_label_tokens(NONE)
    assert context.row_size == n_embd
    for _ in range(2):
        assert (decode_again(context) == plain).all()


def test_a_room_for_rows_of_the_former_size_is_refused(context: NativeContext) -> None:
    rows = np.zeros((1, context.row_size), np.float32)
    one, zero = np.ones(1, np.int32), np.zeros(1, np.int32)
    context.set_label_tokens(label_tokens(3))
    with pytest.raises(PlanError, match="rows must"):
        context.decode(one, zero, np.arange(2, dtype=np.int32), zero, np.ones(1, np.bool_), rows)


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (label_tokens(3, -1), "label token -1"),
        (label_tokens(1 << 20), "label token 1048576"),
        (label_tokens(3, np.iinfo(np.int32).max), "label token 2147483647"),
        (np.zeros(1 << 16, np.int32), "number of label tokens is 65536"),
        (np.array([3], np.int64), "int32"),
        (label_tokens(3, 4, 5, 6)[::2], "contiguous"),
        (label_tokens(3)[None], "1 dimensions"),
    ],
)
def test_refused_tokens_leave_the_context_as_it_was(refused: Any, message: str, context: NativeContext) -> None:
    for before in (NONE, label_tokens(3, 9)):
        context.set_label_tokens(before)
        row_size, expected = context.row_size, decode_again(context)
        with pytest.raises(PlanError, match=message):
            context.set_label_tokens(refused)
        assert context.row_size == row_size
        assert (decode_again(context) == expected).all()


def test_logits_need_no_label_tokens(model: NativeModel, open_context: OpenContext) -> None:
    context = open_context(model, hidden_only=False)
    with pytest.raises(PlanError, match="hidden-only"):
        context.set_label_tokens(label_tokens(3))
    context.set_label_tokens(NONE)
    assert decode_again(context).shape == (len(TOKENS), model.facts.n_vocab)
    with pytest.raises(PlanError, match="hidden-only"):
        open_context(model, hidden_only=False, label_tokens=label_tokens(3))
