"""How many passes a decode of a model with states takes, cut token by token as llama.cpp does, and how some go."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_prompts import made_prompt

from qcls_gguf.plan.growth import Addition, Capacity, plan_decodes
from qcls_gguf.plan.passes import UnsharedTrees, chains_of, count_passes, leaf_padding
from qcls_gguf.plan.tree import Plan, Root, TokenTree
from qcls_gguf.prompts.compiled import Prompt
from qcls_gguf.prompts.prompt_set import fed_alike
from qcls_gguf.prompts.trie import LabelTrie, build_trie

Path = tuple[int, tuple[int, ...]]
"""A root, and tokens after it."""
tokens = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple)
paths = st.lists(st.tuples(st.integers(0, 2), tokens), min_size=1, max_size=12)


def tree_of(paths: Sequence[Path]) -> tuple[TokenTree, list[int]]:
    """The tree, and the last node of each path, which is read."""
    tree = TokenTree()
    roots = [tree.add_root(5) for _ in range(3)]
    ends = [tree.add_path(roots[root], tokens) for root, tokens in paths]
    for end in ends:
        tree.read(end)
    return tree, ends


def owners(plan: Plan) -> list[frozenset[int]]:
    """The sequences of each token."""
    return [frozenset(plan.seq_id[plan.seq_offset[i] : plan.seq_offset[i + 1]].tolist()) for i in range(plan.n_tokens)]


def slow_passes(plan: Plan) -> int:
    """Of a plan, by cutting its batch; what a token grows from is computed before it."""
    sets = owners(plan)
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


@given(paths, st.integers(0, 9), st.integers(0, 20))
def test_padding_pays(paths: list[Path], pass_tokens: int, n_most: int) -> None:
    """It saves passes for fewer tokens than they are worth, stands after leaves only, and changes no other node."""
    tree, _ = tree_of(paths)
    before = tree.finish(range(tree.n_leaves()))
    chains, chain_of = chains_of(tree.parents)
    padding = leaf_padding(chains, pass_tokens, n_most)
    n_passes = count_passes(chains, padding)
    assert count_passes(chains) == slow_passes(before)
    assert sum(padding.values()) <= n_most
    last = {chain: node for node, chain in enumerate(chain_of)}
    assert all(n > 0 and tree.is_leaf(last[chain]) for chain, n in padding.items())
    for chain, n in padding.items():
        tree.add_path(last[chain], [0] * n)
    after = tree.finish(range(tree.n_leaves()))
    assert n_passes == slow_passes(after)
    n_saved = slow_passes(before) - n_passes
    assert n_saved * pass_tokens >= after.n_tokens - before.n_tokens
    assert before.n_leaves == after.n_leaves
    assert after.token[: before.n_tokens].tolist() == before.token.tolist()
    assert after.pos[: before.n_tokens].tolist() == before.pos.tolist()


def prompt(name: str, opening: tuple[int, ...], closing: tuple[int, ...], before: str = "q") -> Prompt:
    return replace(made_prompt(name, [(1,), (2,)], opening, (7,), closing), before=before)


def test_prompts_are_fed_alike() -> None:
    """3 tokens of the fragment come with an empty query, of which the first is stable."""
    n_empty = {("q", ""): 3, ("r", ""): 4}
    alone = [prompt("x", (1, 2), (3,)), prompt("y", (1, 3), (3, 4, 5)), prompt("z", (), (6,), before="r")]
    held_back = [each.n_held_back for each in fed_alike(alone, n_empty, 9)]
    assert held_back == [2, 0, 1]
    assert [each.prefix for each in fed_alike(alone, n_empty, 9)] == [(1,), (1, 3, 7), ()]
    assert [each.n_held_back for each in fed_alike(alone, n_empty, 0)] == [0, 0, 0]
    # one token more saves a pass, the three that would save both are too many
    held_back = [each.n_held_back for each in fed_alike(alone[:1] * 3 + alone[1:], n_empty, 2)]
    assert held_back == [0, 0, 0, 0, 1]
    together = [prompt("x", (1, 2), (3,)), prompt("y", (1, 2), (3, 4, 5)), prompt("z", (1, 3), (6, 6))]
    # x and y part after one token of their tails, z alone feeds one more
    assert [each.n_held_back for each in fed_alike(together, n_empty, 9)] == [1, 1, 0]


def test_what_is_held_back_is_fed() -> None:
    (held,) = [replace(prompt("x", (1, 2), (3,)), n_held_back=2)]
    assert held.prefix == (1,)
    assert held.new_tokens([7, 8, 9]) == (1, [2, 7, 8, 9, 3])
    assert held.new_tokens([8]) == (1, [2, 8, 3])
    broken = replace(held, n_held_back=0)
    assert broken.prefix == (1, 2, 7)
    assert broken.new_tokens([8]) == (0, [1, 2, 8, 3])
    assert broken.new_tokens([7]) == (3, [3])
    assert replace(broken, closing=()).new_tokens([7]) == (0, [1, 2, 7])


def path_to(plan: Plan, node: int) -> Path:
    """By walking any sequence of the node."""
    seq = int(plan.seq_id[plan.seq_offset[node]])
    walked = [i for i, seqs in enumerate(owners(plan)[: node + 1]) if seq in seqs]
    assert walked[-1] == node
    assert plan.pos[walked].tolist() == list(range(5, 5 + len(walked)))
    return plan.leaf_root[seq], tuple(plan.token[walked].tolist())


@given(paths)
def test_leaves_and_what_is_read_stay(paths: list[Path]) -> None:
    tree, ends = tree_of(paths)
    before = tree.finish(range(tree.n_leaves()))
    leaves = sorted(path_to(before, node) for node in range(before.n_tokens) if tree.is_leaf(node))
    trees = UnsharedTrees(tree.parents)
    ranges = [range(0), *trees.level_ranges()]
    for levels in ranges:
        copies = trees.copies(levels)
        copied, first = tree.copied(*trees.nodes_of_copies(copies))
        after = copied.finish(range(copied.n_leaves()))
        assert after.n_tokens == trees.n_tokens(copies)
        chains = trees.chains_of_copies(copies)
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
    """(passes, tokens) of prompts that part after eleven tokens of one text, and have two more each."""
    additions = [
        Addition(trie=trie, root=Root(holder=9, n_cached=5), tokens=[*range(11), 50 + prompt, 70], fast_path=True)
        for prompt in range(n_prompts)
    ]
    (decode,) = plan_decodes(additions, Capacity(n_seqs=64, n_tokens=n_most, n_rows=64, pass_tokens=pass_tokens))
    assert decode.plan.n_outputs == sum(len(trie.read) for _ in range(n_prompts))
    return decode.n_passes, decode.plan.n_tokens


@pytest.mark.parametrize(
    ("of", "wanted"),
    [
        # a common text is fed for each prompt where that costs less than a pass, here 11 tokens
        ((2, 11), (2, 15)),
        ((2, 12), (1, 26)),
        ((2, 32, ONE_TOKEN, 25), (2, 15)),
        # a prompt is fed for each branch of its labels where that costs less; of SEVERAL one branch only is fed
        ((1, 4, SEVERAL), (1, 14)),
        ((1, 32, THREE_LEAVES), (1, 42)),
        # all shared; the last two tokens of two prompts for each branch; all for each branch
        ((2, 4, THREE_LEAVES), (3, 21)),
        ((2, 12, THREE_LEAVES), (2, 29)),
        ((2, 60, THREE_LEAVES), (1, 84)),
    ],
)
def test_what_is_fed_for_each_branch(of: tuple[Any, ...], wanted: tuple[int, int]) -> None:
    assert found(*of) == wanted


@given(paths, st.integers(0, 40), st.integers(0, 40))
def test_the_plan_costs_no_more_than_with_shared_trunks(paths: list[Path], pass_tokens: int, n_more: int) -> None:
    trie = build_trie(["a", "b"], [(101,), (102,)], 9, "first_token")
    additions = [
        Addition(trie=trie, root=Root(holder=root, n_cached=5), tokens=list(tokens), fast_path=True)
        for root, tokens in paths
    ]
    shared, _ = tree_of(paths)
    plan = shared.finish(range(shared.n_leaves()))
    n_most = plan.n_tokens + n_more
    (decode,) = plan_decodes(additions, Capacity(n_seqs=64, n_tokens=n_most, n_rows=64, pass_tokens=pass_tokens))
    assert decode.plan.n_tokens <= n_most
    assert decode.n_passes == slow_passes(decode.plan)
    cost = decode.plan.n_tokens + pass_tokens * decode.n_passes
    assert cost <= plan.n_tokens + pass_tokens * slow_passes(plan)
