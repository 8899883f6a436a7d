"""Trees whose trunks are fed once for each branch: the same paths, and chosen where that costs less."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from slow_passes import slow_passes

from qcls_gguf.plan.growth import Addition, Capacity, plan_decodes
from qcls_gguf.plan.passes import Branches, chains_of, count_passes
from qcls_gguf.plan.tree import Plan, Root, TokenTree
from qcls_gguf.prompts.trie import LabelTrie, build_trie

Path = tuple[int, tuple[int, ...]]
"""A root, and tokens behind it."""

paths = st.lists(
    st.tuples(st.integers(0, 1), st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple)),
    min_size=1,
    max_size=12,
)


def tree_of(paths: list[Path]) -> tuple[TokenTree, list[int]]:
    """The tree, and the last node of each path, which is read."""
    tree = TokenTree()
    roots = [tree.add_root(5) for _ in range(2)]
    ends = [tree.add_path(roots[root], tokens) for root, tokens in paths]
    for end in ends:
        tree.read(end)
    return tree, ends


def path_to(plan: Plan, node: int) -> Path:
    """By walking any sequence of the node."""
    seq = int(plan.seq_id[plan.seq_offset[node]])
    owners = [set(plan.seq_id[plan.seq_offset[i] : plan.seq_offset[i + 1]].tolist()) for i in range(plan.n_tokens)]
    walked = [i for i in range(node + 1) if seq in owners[i]]
    assert walked[-1] == node
    assert plan.pos[walked].tolist() == list(range(5, 5 + len(walked)))
    return plan.leaf_root[seq], tuple(plan.token[walked].tolist())


@settings(deadline=None, max_examples=60, derandomize=True)
@given(paths)
def test_leaves_and_what_is_read_stay(paths: list[Path]) -> None:
    tree, ends = tree_of(paths)
    before = tree.finish(range(tree.n_leaves()))
    leaves = sorted(path_to(before, node) for node in range(before.n_tokens) if tree.is_leaf(node))
    branches = Branches(tree.parents)
    ranges = [range(0), *branches.ranges()]
    for levels in ranges:
        copies = branches.n_copies(levels)
        copied, first = tree.copied(*branches.copied(copies))
        after = copied.finish(range(copied.n_leaves()))
        assert after.n_tokens == branches.n_tokens(copies)
        chains = branches.unshared(copies)
        assert sorted(chains.length) == sorted(chains_of(copied.parents)[0].length)
        assert count_passes(chains) == slow_passes(after)
        assert sorted(path_to(after, node) for node in range(after.n_tokens) if copied.is_leaf(node)) == leaves
        assert [path_to(after, first[end]) for end in ends] == paths
        assert all(after.output[first[end]] for end in ends)
        assert after.n_outputs == before.n_outputs
        if not levels:
            assert after.seq_id.tolist() == before.seq_id.tolist()
        if len(levels) == max(map(len, ranges)):
            assert len(after.seq_id) == after.n_tokens  # no token is shared
            assert count_passes(chains) == len({len(tokens) for _, tokens in leaves})


ONE_TOKEN = build_trie(["a", "b"], [(101,), (102,)], 9, "tree")
SEVERAL = build_trie(["a", "b", "c"], [(101, 103), (101, 104), (102,)], 9, "tree")
THREE_LEAVES = build_trie(["a", "b", "c"], [(101, 103), (102, 103), (104, 103)], 9, "joint")


def found(n_prompts: int, pass_tokens: int, trie: LabelTrie = ONE_TOKEN, n_most: int = 200) -> tuple[int, int]:
    """(passes, tokens) of prompts that part behind eleven tokens of one text, and have two more each."""
    additions = [
        Addition(trie=trie, root=Root(holder=9, n_cached=5), tokens=[*range(11), 50 + prompt, 70], fast_path=True)
        for prompt in range(n_prompts)
    ]
    (decode,) = plan_decodes(additions, Capacity(n_seqs=64, n_tokens=n_most, n_rows=64, pass_tokens=pass_tokens))
    assert decode.plan.n_outputs == sum(len(trie.read) for _ in range(n_prompts))
    return decode.n_passes, decode.plan.n_tokens


def test_a_common_text_is_fed_for_each_prompt_where_that_costs_less_than_a_pass() -> None:
    assert found(2, 4) == (2, 15)
    assert found(2, 11) == (2, 15)  # 11 tokens more for a pass less
    assert found(2, 12) == (1, 26)
    assert found(4, 32) == (2, 19)
    assert found(4, 34) == (1, 52)
    assert found(2, 32, n_most=25) == (2, 15)


def test_a_prompt_is_fed_for_each_branch_of_its_labels_where_that_costs_less_than_a_pass() -> None:
    assert found(1, 4, SEVERAL) == (1, 14)  # one branch only is fed
    assert found(1, 4, THREE_LEAVES) == (2, 16)
    assert found(1, 32, THREE_LEAVES) == (1, 42)
    # two prompts: all shared; their last two tokens for each branch; all for each branch
    assert found(2, 4, THREE_LEAVES) == (3, 21)
    assert found(2, 12, THREE_LEAVES) == (2, 29)
    assert found(2, 60, THREE_LEAVES) == (1, 84)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(paths, st.integers(0, 40), st.integers(0, 40))
def test_the_plan_costs_no_more_than_with_shared_trunks(paths: list[Path], pass_tokens: int, n_more: int) -> None:
    trie = build_trie(["a", "b"], [(101,), (102,)], 9, "first_token")
    additions = [
        Addition(trie=trie, root=Root(holder=root, n_cached=5), tokens=list(tokens), fast_path=True)
        for root, tokens in paths
    ]
    shared = tree_of(paths)[0]
    plan = shared.finish(range(shared.n_leaves()))
    n_most = plan.n_tokens + n_more
    (decode,) = plan_decodes(additions, Capacity(n_seqs=64, n_tokens=n_most, n_rows=64, pass_tokens=pass_tokens))
    assert decode.plan.n_tokens <= n_most
    assert decode.n_passes == slow_passes(decode.plan)
    cost = decode.plan.n_tokens + pass_tokens * decode.n_passes
    assert cost <= plan.n_tokens + pass_tokens * slow_passes(plan)
