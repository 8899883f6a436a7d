"""How many passes a decode of a model with states takes, against tests/slow_passes.py, and tokens that save some."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from slow_passes import slow_passes

from qcls_gguf.plan.growth import Addition, Capacity, plan_decodes
from qcls_gguf.plan.passes import chains_of, count_passes, leaf_padding
from qcls_gguf.plan.tree import Root, TokenTree
from qcls_gguf.prompts.compiled import Prompt
from qcls_gguf.prompts.prompt_set import fed_alike
from qcls_gguf.prompts.trie import build_trie

paths = st.lists(
    st.tuples(st.integers(0, 2), st.lists(st.integers(0, 3), min_size=1, max_size=6)), min_size=1, max_size=12
)


def tree_of(*paths: tuple[int, list[int]]) -> TokenTree:
    """A tree of (root, tokens)."""
    tree = TokenTree()
    roots = [tree.add_root(5) for _ in range(3)]
    for root, tokens in paths:
        tree.add_path(roots[root], tokens)
    return tree


def passes(*paths: tuple[int, list[int]]) -> int:
    return count_passes(chains_of(tree_of(*paths).parents)[0])


@settings(deadline=None, max_examples=100, derandomize=True)
@given(paths)
def test_passes_are_those_of_the_mirror(paths: list[tuple[int, list[int]]]) -> None:
    tree = tree_of(*paths)
    assert passes(*paths) == slow_passes(tree.finish(range(tree.n_leaves())))


def test_passes_of_usual_requests() -> None:
    assert passes((0, [1, 2]), (1, [3, 4]), (2, [5, 6])) == 1
    assert passes((0, [1, 2]), (1, [3, 4, 5])) == 2
    assert passes((0, [1, 2, 3]), (0, [1, 2, 4])) == 2  # a trunk and its branches
    assert passes((0, [1, 2, 3]), (0, [1, 2, 4, 5])) == 3
    assert passes((0, [1])) == 1


@settings(deadline=None, max_examples=100, derandomize=True)
@given(paths, st.integers(0, 9), st.integers(0, 20))
def test_padding_pays(paths: list[tuple[int, list[int]]], pass_tokens: int, n_most: int) -> None:
    """It saves passes for fewer tokens than they are worth, stands behind leaves only, and changes no other node."""
    tree = tree_of(*paths)
    before = tree.finish(range(tree.n_leaves()))
    chains, chain_of = chains_of(tree.parents)
    padding = leaf_padding(chains, pass_tokens, n_most)
    n_passes = count_passes(chains, padding)
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


def test_tails_of_other_lengths_take_one_pass() -> None:
    trie = build_trie(["a", "b"], [(1,), (2,)], 9, "first_token")
    additions = [
        Addition(trie=trie, root=Root(holder=9, n_cached=5), tokens=[1, 2, 3, *tail], fast_path=True)
        for tail in ([4], [5, 6], [7, 8, 4])
    ]
    for pass_tokens, n_tokens, found in ((None, 20, (1, 9)), (3, 20, (2, 12)), (0, 20, (4, 9)), (3, 11, (3, 10))):
        (decode,) = plan_decodes(additions, Capacity(n_seqs=4, n_tokens=n_tokens, n_rows=4, pass_tokens=pass_tokens))
        assert (decode.n_passes, decode.plan.n_tokens) == found
        assert decode.plan.output.sum() == 3


def prompt(name: str, head: tuple[int, ...], tail: tuple[int, ...], before: str = "q") -> Prompt:
    trie = build_trie(["a", "b"], [(1,), (2,)], 9, "first_token")
    return Prompt(
        name=name,
        labels=("a", "b"),
        label_tokens=((1,), (2,)),
        trie=trie,
        before=before,
        after="",
        head=head,
        stable=(7,),
        tail=tail,
    )


def test_prompts_are_fed_alike() -> None:
    """3 tokens of the fragment come with an empty query, of which the first is stable."""
    n_empty = {("q", ""): 3, ("r", ""): 4}
    alone = [prompt("x", (1, 2), (3,)), prompt("y", (1, 3), (3, 4, 5)), prompt("z", (), (6,), before="r")]
    held_back = [each.n_held_back for each in fed_alike(alone, n_empty, 9)]
    assert held_back == [2, 0, 1]
    assert [each.prefix for each in fed_alike(alone, n_empty, 9)] == [(1,), (1, 3, 7), ()]
    assert [each.n_held_back for each in fed_alike(alone, n_empty, 0)] == [0, 0, 0]
    # one token more saves a pass, the three that would save both are too many
    assert [each.n_held_back for each in fed_alike(alone[:1] * 3 + alone[1:2] + alone[2:], n_empty, 2)] == [
        0,
        0,
        0,
        0,
        1,
    ]
    together = [prompt("x", (1, 2), (3,)), prompt("y", (1, 2), (3, 4, 5)), prompt("z", (1, 3), (6, 6))]
    # x and y part behind one token of their tails, z alone feeds one more
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
    assert replace(broken, tail=()).new_tokens([7]) == (0, [1, 2, 7])
