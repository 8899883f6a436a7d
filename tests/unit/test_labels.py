"""The label trie: what is fed, what is read, and which edges a label's score takes."""

import re
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from qcls_gguf.config.scoring import Scoring
from qcls_gguf.errors import ConfigError
from qcls_gguf.prompts.trie import LabelTrie, build_trie, with_end_tokens

END = 99

Path = tuple[int, ...]
label_sets = st.lists(
    st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple), min_size=2, max_size=10, unique=True
)


def names(tokens: list[Path]) -> list[str]:
    return ["-".join(map(str, path)) for path in tokens]


def trie_of(tokens: list[Path], end: int = END, scoring: Scoring = "tree") -> LabelTrie:
    return build_trie(names(tokens), tokens, end, scoring)


def node_paths(trie: LabelTrie) -> list[Path]:
    """The tokens from the end of the prompt to each node."""
    paths: list[Path] = [()]
    for parent, token in trie.fed:
        assert parent < len(paths)
        paths.append((*paths[parent], token))
    return paths


def children(paths: list[Path], node: Path) -> set[int]:
    return {path[len(node)] for path in paths if len(path) > len(node) and path[: len(node)] == node}


def forks(paths: list[Path]) -> set[Path]:
    """The beginnings after which labels differ."""
    beginnings = {path[:n] for path in paths for n in range(len(path))}
    return {beginning for beginning in beginnings if len(children(paths, beginning)) > 1}


@given(label_sets)
def test_a_trie_reads_the_forks_of_its_labels_and_feeds_what_leads_to_them(tokens: list[Path]) -> None:
    ended = with_end_tokens(names(tokens), tokens, END)
    for path, whole in zip(tokens, ended, strict=True):
        begins_another = any(other != path and other[: len(path)] == path for other in tokens)
        assert whole == ((*path, END) if begins_another else path)
    trie, forked = trie_of(tokens), forks(ended)
    nodes = node_paths(trie)
    assert {nodes[node] for node in trie.read} == forked
    assert trie.read == tuple(sorted(set(trie.read)))
    assert sorted(nodes) == sorted({(), *(path[:n] for path in forked for n in range(len(path) + 1))})
    ends = [path for path in nodes[1:] if not children(nodes, path)]
    assert trie.n_leaves == max(1, len(ends))
    for node in trie.read:  # whose children are its edges, in the order of the labels
        candidates = [edge.token for edge in trie.edges if edge.node == node]
        assert candidates == list(dict.fromkeys(p[len(nodes[node])] for p in ended if children([p], nodes[node])))
    assert all(a.node <= b.node for a, b in pairwise(trie.edges))
    assert {edge.node for edge in trie.edges} == set(trie.read)
    for path, edges in zip(ended, trie.label_edges, strict=True):  # one edge at each fork on a label's way
        expected = [path[: n + 1] for n in range(len(path)) if path[:n] in forked]
        assert [(*nodes[trie.edges[edge].node], trie.edges[edge].token) for edge in edges] == expected
        assert edges
    assert len(set(trie.label_edges)) == len(tokens)


@given(label_sets, st.integers(0, 3))
def test_an_end_token_that_continues_a_label_is_refused(tokens: list[Path], end: int) -> None:
    begun = {path for path in tokens if any(children([other], path) for other in tokens)}
    ambiguous = any(end in children(tokens, path) for path in begun)
    if ambiguous:
        with pytest.raises(ConfigError):
            trie_of(tokens, end)
    else:
        assert len(set(trie_of(tokens, end).label_edges)) == len(tokens)


@given(label_sets)
def test_first_token_scoring_feeds_nothing(tokens: list[Path]) -> None:
    assume(len({path[0] for path in tokens}) == len(tokens))
    trie = trie_of(tokens, -1, "first_token")
    assert (trie.fed, trie.read, trie.n_leaves, trie.scoring) == ((), (0,), 1, "first_token")
    assert [edge.token for edge in trie.edges] == [path[0] for path in tokens]
    assert {edge.node for edge in trie.edges} == {0}
    assert trie.label_edges == tuple((index,) for index in range(len(tokens)))


def test_labels_that_cannot_be_told_apart_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^labels 'grey' and 'gray' are the same tokens: keep one of them$"):
        build_trie(["grey", "red", "gray"], [(1, 2), (3,), (1, 2)], END, "tree")
    with pytest.raises(ConfigError, match=r"^label 'jump' is the beginning of another label.*set label_end$"):
        build_trie(["jumper", "jump"], [(1, 2), (1,)], -1, "tree")


def test_a_first_token_collision_names_both_labels_and_the_token() -> None:
    message = "labels 'light blue' and 'light pink' share their first token 17, so first_token scoring"
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        build_trie(["red", "light blue", "light pink"], [(4,), (17, 2), (17, 3)], END, "first_token")
