"""Token counts brought to few: how far a decode is filled up, and that nothing of it is changed by that."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from qcls_gguf.plan.growth import DecodePlan
from qcls_gguf.plan.shapes import padded, rung
from qcls_gguf.plan.tree import Plan, Root, TokenTree

PROPERTY = settings(deadline=None, max_examples=20, derandomize=True)
AMPLE = 1 << 20


def test_rungs_are_few_and_near() -> None:
    rungs = [rung(n) for n in range(1, 4097)]
    assert rungs == sorted(rungs)
    assert all(rung(found) == found for found in rungs)
    assert all(n <= found < n + max(8, n / 8) for n, found in enumerate(rungs, 1))
    assert len(set(rungs)) == 16 + 8 * 5  # multiples of 8 up to 128, then eight to each doubling


@st.composite
def decodes(draw: st.DrawFn) -> DecodePlan:
    tree = TokenTree()
    roots = [tree.add_root(n) for n in draw(st.lists(st.integers(0, 40), min_size=1, max_size=3))]
    path = st.tuples(st.sampled_from(roots), st.lists(st.integers(0, 3), min_size=1, max_size=9))
    for root, tokens in draw(st.lists(path, min_size=1, max_size=12)):
        tree.read(tree.add_path(root, tokens))
    plan = tree.finish(range(tree.n_leaves()))
    leaf_roots = tuple(Root(holder=99, n_cached=0) for _ in plan.leaf_root)
    return DecodePlan(plan=plan, leaf_roots=leaf_roots, rows=np.flatnonzero(plan.output))


@PROPERTY
@given(decodes())
def test_what_is_added_stands_behind_one_leaf_and_is_not_read(decode: DecodePlan) -> None:
    before = decode.plan
    filled, token = padded(decode, before.token + 5, most_tokens=AMPLE, n_positions=AMPLE)
    plan, n = filled.plan, before.n_tokens
    assert plan.n_tokens == len(token) == rung(n)
    assert (filled.rows is decode.rows, plan.n_outputs, plan.leaf_root) == (True, before.n_outputs, before.leaf_root)
    np.testing.assert_array_equal(token[:n], before.token + 5)
    for name in ("pos", "output", "node_row"):
        np.testing.assert_array_equal(getattr(plan, name)[:n], getattr(before, name))
    np.testing.assert_array_equal(plan.seq_offset[: n + 1], before.seq_offset)
    np.testing.assert_array_equal(plan.seq_id[: len(before.seq_id)], before.seq_id)
    assert not plan.output[n:].any()
    assert (plan.node_row[n:] == -1).all()
    added = plan.seq_id[plan.seq_offset[n] :]
    assert len(added) == plan.n_tokens - n
    ends = [before.pos[[seq in _of(before, i) for i in range(n)]].max() for seq in range(before.n_leaves)]
    if len(added):
        assert set(added) == {int(np.argmin(ends))}
        np.testing.assert_array_equal(plan.pos[n:], min(ends) + 1 + np.arange(len(added)))


def _of(plan: Plan, i: int) -> list[int]:
    return plan.seq_id[plan.seq_offset[i] : plan.seq_offset[i + 1]].tolist()  # type: ignore[no-any-return]


@PROPERTY
@given(decodes(), st.integers(0, 30), st.integers(-1, 60))
def test_limits_are_kept(decode: DecodePlan, room: int, n_positions: int) -> None:
    n = decode.plan.n_tokens
    filled, _ = padded(decode, decode.plan.token, most_tokens=n + room, n_positions=n_positions)
    assert n <= filled.plan.n_tokens <= n + room
    if filled.plan.n_tokens > n:
        assert n_positions <= 0 or filled.plan.pos[n:].max() < n_positions
    elif n_positions <= 0:
        assert rung(n) == n or room == 0
