"""Plans of decodes, and the cache of prefixes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_prompts import made_prompt

from qcls_gguf.engine.prefix_cache import Prefix, PrefixCache, Tokens
from qcls_gguf.errors import PlanError
from qcls_gguf.plan.decodes import Capacity, DecodeInput, Root, TokenTree, addition_of, padded, plan_decodes, rung

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
        handles = [tree.add_root(Root(*root)) for root in enumerate(self.n_cached)]
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
    tokens = st.lists(st.integers(0, 3), min_size=1, max_size=6).map(tuple)
    path = st.tuples(st.integers(0, len(n_cached) - 1), tokens, st.booleans())
    return Forest(n_cached=tuple(n_cached), paths=tuple(draw(st.lists(path, min_size=1, max_size=15))))


def finish(tree: TokenTree, edges: Sequence[int] = ()) -> DecodeInput:
    return tree.finish(range(FIRST_SEQ, FIRST_SEQ + tree.n_leaves), edges=edges)


def sequences(plan: DecodeInput, token: int) -> list[int]:
    return [int(seq) for seq in plan.seq_id[plan.seq_offset[token] : plan.seq_offset[token + 1]]]


def members(plan: DecodeInput, seq: int) -> list[int]:
    """The tokens of a sequence, by position."""
    return sorted((i for i in range(plan.n_tokens) if seq in sequences(plan, i)), key=lambda i: int(plan.pos[i]))


def path_of(plan: DecodeInput) -> list[tuple[int, tuple[int, ...]]]:
    """(root, tokens) of every token, by walking the sequences."""
    found: dict[int, tuple[int, tuple[int, ...]]] = {}
    for leaf, (root, _) in enumerate(plan.roots):
        walked = members(plan, FIRST_SEQ + leaf)
        for depth, token in enumerate(walked, 1):
            path = root, tuple(plan.token[walked[:depth]].tolist())
            assert found.setdefault(token, path) == path
    return [found[i] for i in range(plan.n_tokens)]


@given(forests())
def test_sequences_are_the_paths_to_leaves_and_equal_paths_are_one_node(forest: Forest) -> None:
    tree, ends = forest.grow()
    plan = finish(tree, [end for end, path in zip(ends, forest.paths, strict=True) if path[2]])
    found = []
    for leaf, (root, _) in enumerate(plan.roots):
        walked = members(plan, FIRST_SEQ + leaf)
        assert walked == sorted(walked)  # a parent comes before its children
        first = forest.n_cached[root]
        assert plan.pos[walked].tolist() == list(range(first, first + len(walked)))
        found.append((root, tuple(plan.token[walked].tolist())))
    assert (len(found), set(found)) == (len(set(found)), forest.leaves())
    paths = path_of(plan)
    assert [tree.is_leaf(end) for end in ends] == [path[:2] in forest.leaves() for path in forest.paths]
    assert len(tree) == plan.n_tokens == len(forest.nodes())
    assert set(paths) == forest.nodes()
    for i, (root, tokens) in enumerate(paths):  # each lists the leaves below it
        is_below = [leaf_root == root and path[: len(tokens)] == tokens for leaf_root, path in found]
        assert sorted(sequences(plan, i)) == [FIRST_SEQ + leaf for leaf, below in enumerate(is_below) if below]
    # rows number the nodes that are read, in the order of the tokens
    assert {path for path, read in zip(paths, plan.output, strict=True) if read} == forest.read()
    assert plan.n_rows == len(forest.read())
    read = np.flatnonzero(plan.output)[plan.rows].tolist()
    assert [paths[node] for node in read] == [path[:2] for path in forest.paths if path[2]]
    assert [paths[end] for end in ends] == [path[:2] for path in forest.paths]


def test_each_leaf_needs_a_sequence() -> None:
    tree = TokenTree()
    for token in (1, 2):
        tree.add_path(tree.add_root(Root(0, 0)), [token])
    with pytest.raises(PlanError, match=r"^2 leaves need .*there are 1$"):
        tree.finish(range(1))


def test_an_unread_tree_and_an_empty_one_have_no_outputs() -> None:
    tree = TokenTree()
    root = tree.add_root(Root(0, 0))
    empty = tree.finish([])
    assert (empty.n_tokens, empty.n_rows, empty.roots, empty.seq_offset.tolist()) == (0, 0, (), [0])
    node = tree.add_path(root, [1, 2])
    assert (tree.add_path(root, []), tree.add_path(node, [])) == (root, node)
    assert tree.finish([0]).n_rows == 0


def test_reading_a_root_is_refused() -> None:
    tree = TokenTree()
    for root in (tree.add_root(Root(0, 5)), tree.add_root(Root(1, 6))):
        with pytest.raises(PlanError, match="feed at least its last token"):
            tree.read(root)
    assert finish(tree).n_rows == 0


def decode_of(forest: Forest) -> DecodeInput:
    tree, ends = forest.grow()
    return tree.finish(edges=[end for end, path in zip(ends, forest.paths, strict=True) if path[2]])


@given(forests())
def test_what_is_added_stands_behind_one_leaf_and_is_not_read(forest: Forest) -> None:
    before, ample = decode_of(forest), 1 << 20
    plan, n = padded(before, most_tokens=ample, n_positions=ample), before.n_tokens
    assert (plan.n_tokens, plan[5:]) == (rung(n), before[5:])
    for name in ("token", "pos", "output"):
        np.testing.assert_array_equal(getattr(plan, name)[:n], getattr(before, name))
    np.testing.assert_array_equal(plan.seq_offset[: n + 1], before.seq_offset)
    np.testing.assert_array_equal(plan.seq_id[: len(before.seq_id)], before.seq_id)
    assert not plan.output[n:].any()
    added = plan.seq_id[plan.seq_offset[n] :]
    assert len(added) == plan.n_tokens - n
    ends = [before.pos[members(before, leaf)].max() for leaf in range(len(before.roots))]
    if len(added):
        assert set(added) == {int(np.argmin(ends))}
        np.testing.assert_array_equal(plan.pos[n:], min(ends) + 1 + np.arange(len(added)))


@given(forests(), st.integers(0, 30), st.integers(-1, 60))
def test_limits_are_kept(forest: Forest, room: int, n_positions: int) -> None:
    decode = decode_of(forest)
    n = decode.n_tokens
    filled = padded(decode, most_tokens=n + room, n_positions=n_positions)
    assert n <= filled.n_tokens <= n + room
    if filled.n_tokens > n:
        assert n_positions <= 0 or filled.pos[n:].max() < n_positions
    elif n_positions <= 0:
        assert rung(n) == n or room == 0


@pytest.mark.parametrize("limit", ["n_seqs", "n_tokens", "n_rows"])
def test_prompts_are_divided_among_decodes_by_each_limit(limit: str) -> None:
    """Six prompts that share no token, two in a decode."""
    prompts = [made_prompt(str(n), ((1, 2), (1, 3), (4, 5), (4, 6)), opening=(n,)) for n in range(6)]
    additions = [addition_of(prompt, n, [9, n]) for n, prompt in enumerate(prompts)]
    ample = Capacity(n_seqs=99, n_tokens=99, n_rows=99)
    for n_together, n_decodes in ((6, 1), (2, 3), (1, 6)):
        (some,) = plan_decodes(additions[:n_together], ample)
        most = {"n_seqs": len(some.roots), "n_tokens": some.n_tokens, "n_rows": some.n_rows}[limit]
        decodes = plan_decodes(additions, replace(ample, **{limit: most}))
        assert len(decodes) == n_decodes
        assert sum(decode.n_tokens for decode in decodes) == 6 * (2 + 2)  # the query, and the labels' first tokens


tokens = st.lists(st.integers(0, 2), max_size=7).map(tuple)
HOLDERS = range(5, 12)


def beginnings(prefixes: list[Tokens]) -> set[Tokens]:
    return {prefix[:n] for prefix in prefixes for n in range(1, len(prefix) + 1)}


def add(cache: PrefixCache, prefix: Tokens) -> Prefix:
    reserved = cache.reserve(prefix, group=0)
    cache.put(reserved)
    return reserved


@settings(max_examples=200)
@given(st.lists(st.tuples(tokens, st.booleans()), max_size=40), tokens, st.lists(tokens, max_size=6))
def test_it_is_a_set_of_beginnings(steps: list[tuple[Tokens, bool]], asked: Tokens, wanted: list[Tokens]) -> None:
    """Each step puts a prefix in, or takes out the one that was put in first."""
    cache = PrefixCache(HOLDERS)
    cached: list[Tokens] = []
    for prefix, is_added in steps:
        if is_added and prefix not in cached and len(cached) < len(HOLDERS):
            add(cache, prefix)
            cached.append(prefix)
        elif not is_added and cached:
            gone = cache.get(cached.pop(0))
            assert gone is not None
            cache.evict(gone)
        assert cache.n_cells == len(beginnings(cached))
        assert sorted(each.tokens for each in cache.prefixes) == sorted(cached)
        holders = [each.holder for each in cache.prefixes]
        assert (len(set(holders)), cache.n_free_holders) == (len(holders), len(HOLDERS) - len(cached))
    match, n = cache.match(asked)
    assert n == max((k for k in range(len(asked) + 1) if asked[:k] in beginnings(cached)), default=0)
    if match:
        assert (match.tokens[:n], match.tokens in cached) == (asked[:n], True)
    else:
        assert n == 0
    missing = {prefix for prefix in wanted if prefix not in cached}
    n_cells = len(beginnings([*cached, *missing])) - len(beginnings(cached))
    assert cache.n_missing(wanted) == (len(missing), n_cells)


def test_the_one_that_was_wanted_longest_ago_goes_first() -> None:
    cache = PrefixCache(HOLDERS)
    first, second, third = (add(cache, prefix) for prefix in ((1,), (2,), (3,)))
    assert cache.least_recently_used() is first
    cache.use(first)
    second.n_users = 1
    assert cache.least_recently_used() is third
    third.n_users = first.n_users = 1
    assert cache.least_recently_used() is None


@given(st.lists(tokens, max_size=7, unique=True), tokens, st.lists(tokens, max_size=6))
def test_a_cache_of_states_matches_whole_prefixes(cached: list[Tokens], asked: Tokens, wanted: list[Tokens]) -> None:
    cache = PrefixCache(HOLDERS, have_states=True)
    for prefix in cached:
        add(cache, prefix)
    match, n = cache.match(asked)
    longest = max((prefix for prefix in cached if prefix == asked[: len(prefix)]), key=len, default=())
    assert (match.tokens if match else (), n) == (longest, len(longest))
    missing = set(wanted) - set(cached)
    assert cache.n_missing(wanted) == (len(missing), sum(map(len, missing)))
    assert cache.n_cells == sum(map(len, cached))
    for each in cache.prefixes[::2]:
        cache.evict(each)
    assert cache.n_cells == sum(len(each.tokens) for each in cache.prefixes)
