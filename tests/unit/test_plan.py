"""The planner's arrays, read back sequence by sequence and compared with the paths that went in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qcls_gguf.errors import PlanError
from qcls_gguf.plan.tree import Plan, TokenTree

PROPERTY = settings(deadline=None, max_examples=80, derandomize=True)
FIRST_SEQ = 7

Paths = set[tuple[int, tuple[int, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forest:
    """Roots' cached lengths, and (root, tokens, whether the last token is read) of each path."""

    n_cached: tuple[int, ...]
    paths: tuple[tuple[int, tuple[int, ...], bool], ...]

    def grow(self) -> tuple[TokenTree, list[int]]:
        """The tree, and the last node of each path."""
        tree = TokenTree()
        handles = [tree.add_root(n) for n in self.n_cached]
        ends = [tree.add_path(handles[root], tokens) for root, tokens, _ in self.paths]
        for end, (_, _, read) in zip(ends, self.paths, strict=True):
            if read:
                tree.read(end)
        return tree, ends

    def nodes(self) -> Paths:
        return {(root, tokens[:n]) for root, tokens, _ in self.paths for n in range(1, len(tokens) + 1)}

    def leaves(self) -> Paths:
        nodes = self.nodes()
        return nodes - {(root, tokens[:-1]) for root, tokens in nodes}

    def read(self) -> Paths:
        return {(root, tokens) for root, tokens, read in self.paths if read}


@st.composite
def forests(draw: st.DrawFn) -> Forest:
    n_cached = draw(st.lists(st.integers(0, 50), min_size=1, max_size=4))
    path = st.tuples(
        st.integers(0, len(n_cached) - 1), st.lists(st.integers(0, 3), min_size=1, max_size=6).map(tuple), st.booleans()
    )
    return Forest(n_cached=tuple(n_cached), paths=tuple(draw(st.lists(path, min_size=1, max_size=15))))


def finish(tree: TokenTree) -> Plan:
    return tree.finish(range(FIRST_SEQ, FIRST_SEQ + tree.n_leaves()))


def sequences(plan: Plan, token: int) -> list[int]:
    return [int(seq) for seq in plan.seq_id[plan.seq_offset[token] : plan.seq_offset[token + 1]]]


def members(plan: Plan, seq: int) -> list[int]:
    """The tokens of a sequence, by position."""
    found = [i for i in range(plan.n_tokens) if seq in sequences(plan, i)]
    return sorted(found, key=lambda i: int(plan.pos[i]))


def path_of(plan: Plan) -> list[tuple[int, tuple[int, ...]]]:
    """(root, tokens) of every token, by walking the sequences."""
    found: dict[int, tuple[int, tuple[int, ...]]] = {}
    for leaf, root in enumerate(plan.leaf_root):
        walked = members(plan, FIRST_SEQ + leaf)
        for depth, token in enumerate(walked, 1):
            path = root, tuple(plan.token[walked[:depth]].tolist())
            assert found.setdefault(token, path) == path
    return [found[i] for i in range(plan.n_tokens)]


@PROPERTY
@given(forests())
def test_each_sequence_is_one_path_from_its_root_to_a_leaf(forest: Forest) -> None:
    plan = finish(forest.grow()[0])
    found = []
    for leaf, root in enumerate(plan.leaf_root):
        walked = members(plan, FIRST_SEQ + leaf)
        first = forest.n_cached[root]
        assert plan.pos[walked].tolist() == list(range(first, first + len(walked)))
        found.append((root, tuple(plan.token[walked].tolist())))
    assert len(found) == len(set(found))
    assert set(found) == forest.leaves()


@PROPERTY
@given(forests())
def test_equal_paths_are_one_node(forest: Forest) -> None:
    tree, ends = forest.grow()
    plan = finish(tree)
    paths = path_of(plan)
    assert len(tree) == plan.n_tokens == len(forest.nodes())
    assert set(paths) == forest.nodes()
    for end, (root, tokens, _) in zip(ends, forest.paths, strict=True):
        assert paths[end] == (root, tokens)


@PROPERTY
@given(forests())
def test_a_token_lists_exactly_the_leaves_below_it(forest: Forest) -> None:
    plan = finish(forest.grow()[0])
    paths = path_of(plan)
    leaf_paths = [paths[members(plan, FIRST_SEQ + leaf)[-1]] for leaf in range(plan.n_leaves)]
    for i, (root, tokens) in enumerate(paths):
        below = [
            FIRST_SEQ + leaf
            for leaf, (leaf_root, path) in enumerate(leaf_paths)
            if leaf_root == root and path[: len(tokens)] == tokens
        ]
        assert sorted(sequences(plan, i)) == below


@PROPERTY
@given(forests())
def test_no_sequence_holds_siblings_and_a_parent_comes_before_its_children(forest: Forest) -> None:
    plan = finish(forest.grow()[0])
    for seq in range(FIRST_SEQ, FIRST_SEQ + plan.n_leaves):
        walked = members(plan, seq)
        assert len(set(plan.pos[walked].tolist())) == len(walked)
        assert walked == sorted(walked)


@PROPERTY
@given(forests())
def test_arrays_have_the_documented_types_and_shapes(forest: Forest) -> None:
    tree, _ = forest.grow()
    plan = finish(tree)
    n = plan.n_tokens
    for array in (plan.token, plan.pos, plan.seq_offset, plan.seq_id, plan.node_row):
        assert array.dtype == np.int32
        assert array.flags.c_contiguous
    assert plan.output.dtype == np.bool_
    assert {a.shape for a in (plan.token, plan.pos, plan.output, plan.node_row)} == {(n,)}
    assert plan.seq_offset.shape == (n + 1,)
    assert plan.seq_offset[0] == 0
    assert (np.diff(plan.seq_offset) >= 1).all()
    assert plan.seq_id.shape == (plan.seq_offset[-1],)
    assert set(plan.seq_id.tolist()) == set(range(FIRST_SEQ, FIRST_SEQ + plan.n_leaves))
    assert plan.n_leaves == tree.n_leaves() == len(forest.leaves())


@PROPERTY
@given(forests())
def test_rows_number_the_read_nodes_in_the_order_of_the_tokens(forest: Forest) -> None:
    tree, ends = forest.grow()
    plan = finish(tree)
    assert {path for path, read in zip(path_of(plan), plan.output, strict=True) if read} == forest.read()
    assert plan.n_outputs == len(forest.read())
    assert plan.node_row[plan.output].tolist() == list(range(plan.n_outputs))
    assert (plan.node_row[~plan.output] == -1).all()
    for end, (root, tokens, _) in zip(ends, forest.paths, strict=True):
        assert (plan.node_row[end] >= 0) == ((root, tokens) in forest.read())


@PROPERTY
@given(forests())
def test_is_leaf_tells_the_ends_of_sequences(forest: Forest) -> None:
    tree, ends = forest.grow()
    for end, (root, tokens, _) in zip(ends, forest.paths, strict=True):
        assert tree.is_leaf(end) == ((root, tokens) in forest.leaves())


@PROPERTY
@given(forests())
def test_too_few_sequences_are_refused(forest: Forest) -> None:
    tree, _ = forest.grow()
    n = tree.n_leaves()
    with pytest.raises(PlanError, match=rf"^{n} leaves need {n} sequences, and there are {n - 1}$"):
        tree.finish(range(n - 1))


def test_a_tree_worked_by_hand() -> None:
    tree = TokenTree()
    root, other = tree.add_root(10), tree.add_root(3)
    stem = tree.add_path(root, [5, 6])
    left, right = tree.add_path(stem, [7]), tree.add_path(stem, [8])
    alone = tree.add_path(other, [5])
    for node in (right, stem, alone):
        tree.read(node)
    plan = tree.finish([20, 21, 22, 23])
    assert [stem, left, right, alone] == [1, 2, 3, 4]
    assert plan.token.tolist() == [5, 6, 7, 8, 5]
    assert plan.pos.tolist() == [10, 11, 12, 12, 3]
    assert [sorted(sequences(plan, i)) for i in range(5)] == [[20, 21], [20, 21], [20], [21], [22]]
    assert plan.output.tolist() == [False, True, False, True, True]
    assert plan.node_row.tolist() == [-1, 0, -1, 1, 2]
    assert plan.leaf_root == (0, 0, 1)
    assert (plan.n_tokens, plan.n_outputs, plan.n_leaves) == (5, 3, 3)


def test_leaves_take_the_given_sequences_in_the_order_of_their_nodes() -> None:
    tree = TokenTree()
    root = tree.add_root(0)
    first, second = tree.add_path(root, [1]), tree.add_path(root, [2])
    longer = tree.add_path(first, [3])
    plan = tree.finish([9, 4])
    assert [sequences(plan, node) for node in (first, second, longer)] == [[4], [9], [4]]


def test_roots_share_no_nodes() -> None:
    tree = TokenTree()
    ends = [tree.add_path(tree.add_root(4), [1, 2]) for _ in range(2)]
    assert ends == [1, 3]
    assert finish(tree).leaf_root == (0, 1)


def test_no_tokens_add_no_node() -> None:
    tree = TokenTree()
    root = tree.add_root(4)
    node = tree.add_path(root, [1])
    assert tree.add_path(root, []) == root
    assert tree.add_path(node, []) == node
    assert len(tree) == 1
    assert not tree.is_leaf(root)


def test_an_unread_tree_and_an_empty_one_have_no_outputs() -> None:
    tree = TokenTree()
    root = tree.add_root(0)
    empty = tree.finish([])
    assert (empty.n_tokens, empty.n_outputs, empty.n_leaves, empty.seq_offset.tolist()) == (0, 0, 0, [0])
    tree.add_path(root, [1, 2])
    assert tree.finish([0]).n_outputs == 0


def test_reading_a_root_is_refused() -> None:
    tree = TokenTree()
    for root in (tree.add_root(5), tree.add_root(6)):
        with pytest.raises(PlanError, match="feed at least its last token"):
            tree.read(root)
    assert finish(tree).n_outputs == 0
