"""The scorer against probabilities worked by hand and against an obvious, slow mirror of its formulas."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qcls_gguf.config.scoring import Scoring
from qcls_gguf.errors import ScoreError
from qcls_gguf.prompts.trie import LabelTrie, build_trie
from qcls_gguf.score import scorer as score
from qcls_gguf.score.scorer import LabelScores, Scorer

PROPERTY = settings(deadline=None, max_examples=80, derandomize=True)
END = 6
N_TOKENS = 7
N_EMBD = 5

Float32Array = npt.NDArray[np.float32]
IndexArray = npt.NDArray[np.intp]
Path = tuple[int, ...]
Request = tuple[list[LabelTrie], dict[int, Float32Array], Float32Array, IndexArray]


def trie_of(*tokens: Path, scoring: Scoring = "tree") -> LabelTrie:
    return build_trie([str(path) for path in tokens], tokens, END, scoring)


def one_hot_rows() -> dict[int, Float32Array]:
    """With these, element t of a hidden state is the logit of token t."""
    return dict(enumerate(np.eye(N_TOKENS, dtype=np.float32)))


def logits(*states: dict[int, float]) -> Float32Array:
    """Hidden states that give those logits, and a large one to every other token."""
    hidden = np.full((len(states), N_TOKENS), 50.0, np.float32)
    for state, given_logits in zip(hidden, states, strict=True):
        for token, logit in given_logits.items():
            state[token] = logit
    return hidden


def scores_of(
    tries: Sequence[LabelTrie], head: dict[int, Float32Array], hidden: Float32Array, row: IndexArray
) -> LabelScores:
    """Scores of queries whose read nodes are in these rows, (n_queries, n_positions), from a scorer of their own."""
    n_edges = [sum(edge.node == node for edge in trie.edges) for trie in tries for node in trie.read]
    scorer = Scorer(tries, head)
    assert scorer.n_positions == row.shape[1]
    return scorer.score(hidden, np.repeat(row, n_edges, axis=1))


def rows(*numbers: Sequence[int]) -> IndexArray:
    return np.array(numbers, np.intp)


@st.composite
def label_sets(draw: st.DrawFn) -> LabelTrie:
    path = st.lists(st.integers(0, END - 1), min_size=1, max_size=4).map(tuple)
    tokens = draw(st.lists(path, min_size=2, max_size=8, unique=True))
    distinct = len({path[0] for path in tokens}) == len(tokens)
    return trie_of(*tokens, scoring=draw(st.sampled_from(["tree", "first_token"])) if distinct else "tree")


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Tries, head rows, hidden states, and which of them each query's positions read, several times or never."""
    tries = draw(st.lists(label_sets(), min_size=1, max_size=4))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_rows, n_queries = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    hidden = random.normal(0, 2, (n_rows, N_EMBD)).astype(np.float32)
    head = random.normal(0, 1, (N_TOKENS, N_EMBD)).astype(np.float32)
    row = random.integers(0, n_rows, (n_queries, sum(len(trie.read) for trie in tries)))
    return tries, dict(enumerate(head)), hidden, row.astype(np.intp)


def mirror(trie: LabelTrie, head: dict[int, Float32Array], state_of: dict[int, Float32Array]) -> list[list[float]]:
    """(score, probability) of each label: the formulas of the module, one edge at a time, in float64."""

    def logit(edge: int) -> float:
        node, token = trie.edges[edge].node, trie.edges[edge].token
        return sum(float(a) * float(b) for a, b in zip(state_of[node], head[token], strict=True))

    def log_softmax(edge: int) -> float:
        siblings = [i for i, other in enumerate(trie.edges) if other.node == trie.edges[edge].node]
        return logit(edge) - math.log(sum(math.exp(logit(i)) for i in siblings))

    log_probability = [sum(log_softmax(edge) for edge in edges) for edges in trie.label_edges]
    if trie.scoring == "first_token":
        return [[logit(edges[0]), math.exp(p)] for edges, p in zip(trie.label_edges, log_probability, strict=True)]
    return [[p, math.exp(p)] for p in log_probability]


def check_against_mirror(
    tries: list[LabelTrie], head: dict[int, Float32Array], hidden: Float32Array, row: IndexArray, found: LabelScores
) -> None:
    for query, numbers in enumerate(row):
        expected: list[list[float]] = []
        start = 0
        for trie in tries:
            own = numbers[start : start + len(trie.read)]
            expected += mirror(trie, head, {node: hidden[i] for node, i in zip(trie.read, own, strict=True)})
            start += len(trie.read)
        np.testing.assert_allclose(found.score[query], [score for score, _ in expected], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found.probability[query], [p for _, p in expected], rtol=1e-5, atol=1e-5)


@PROPERTY
@given(requests())
def test_scores_equal_the_mirror(request_: Request) -> None:
    tries, head, hidden, row = request_
    check_against_mirror(tries, head, hidden, row, scores_of(tries, head, hidden, row))


@PROPERTY
@given(requests())
def test_each_prompts_probabilities_sum_to_one(request_: Request) -> None:
    tries, head, hidden, row = request_
    scorer = Scorer(tries, head)
    found = scores_of(tries, head, hidden, row)
    n_labels = [len(trie.label_edges) for trie in tries]
    assert scorer.first == [sum(n_labels[:i]) for i in range(len(tries) + 1)]
    assert found.score.shape == found.probability.shape == (len(row), sum(n_labels))
    assert found.score.dtype == found.probability.dtype == np.float32
    for first, end in zip(scorer.first, scorer.first[1:], strict=False):
        np.testing.assert_allclose(found.probability[:, first:end].sum(axis=1), 1, rtol=1e-5)


@PROPERTY
@given(requests())
def test_a_query_scores_the_same_alone_and_among_others(request_: Request) -> None:
    tries, head, hidden, row = request_
    together = scores_of(tries, head, hidden, row)
    for query, numbers in enumerate(row):
        alone = scores_of(tries, head, np.ascontiguousarray(hidden[numbers]), rows(range(len(numbers))))
        np.testing.assert_allclose(alone.score[0], together.score[query], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(alone.probability[0], together.probability[query], rtol=1e-5, atol=1e-6)


@PROPERTY
@given(requests())
def test_a_prompt_scores_the_same_alone_and_among_others(request_: Request) -> None:
    tries, head, hidden, row = request_
    scorer = Scorer(tries, head)
    together = scores_of(tries, head, hidden, row)
    start = 0
    for index, trie in enumerate(tries):
        alone = scores_of([trie], head, hidden, row[:, start : start + len(trie.read)])
        labels = slice(scorer.first[index], scorer.first[index + 1])
        np.testing.assert_allclose(alone.score, together.score[:, labels], rtol=1e-5, atol=1e-5)
        start += len(trie.read)


def test_two_labels_of_one_token() -> None:
    found = scores_of([trie_of((0,), (1,))], one_hot_rows(), logits({0: 2.0, 1: 1.0}), rows([0]))
    p = math.exp(2.0) / (math.exp(2.0) + math.exp(1.0))
    np.testing.assert_allclose(found.probability, [[p, 1 - p]], rtol=1e-6)
    np.testing.assert_allclose(found.score, [[math.log(p), math.log(1 - p)]], rtol=1e-6)


def test_labels_with_a_shared_first_token_multiply_along_the_path() -> None:
    light_blue, light_pink, red = (0, 1), (0, 2), (3,)
    hidden = logits({0: 1.5, 3: 0.5}, {1: -1.0, 2: 2.0})
    found = scores_of([trie_of(light_blue, red, light_pink)], one_hot_rows(), hidden, rows([0, 1]))
    light = math.exp(1.5) / (math.exp(1.5) + math.exp(0.5))
    blue = math.exp(-1.0) / (math.exp(-1.0) + math.exp(2.0))
    expected = [light * blue, 1 - light, light * (1 - blue)]
    np.testing.assert_allclose(found.probability, [expected], rtol=1e-5)
    np.testing.assert_allclose(found.score, [np.log(expected)], rtol=1e-5)


def test_a_label_that_begins_another_takes_the_end_tokens_logit() -> None:
    hidden = logits({0: 0.0, 3: 0.0}, {END: 1.0, 1: 3.0})
    found = scores_of([trie_of((0,), (0, 1), (3,))], one_hot_rows(), hidden, rows([0, 1]))
    ends = math.exp(1.0) / (math.exp(1.0) + math.exp(3.0))
    np.testing.assert_allclose(found.probability, [[ends / 2, (1 - ends) / 2, 0.5]], rtol=1e-5)


def test_a_path_without_a_choice_costs_no_probability() -> None:
    found = scores_of([trie_of((0, 1, 2), (3,))], one_hot_rows(), logits({0: 1.0, 3: 1.0}), rows([0]))
    np.testing.assert_allclose(found.probability, [[0.5, 0.5]], rtol=1e-6)


def test_first_token_scores_are_the_logits_and_probabilities_their_softmax() -> None:
    trie = trie_of((0, 5), (1,), (2, 4, 4), scoring="first_token")
    found = scores_of([trie], one_hot_rows(), logits({0: 3.0, 1: -2.0, 2: 1.0}), rows([0]))
    total = math.exp(3.0) + math.exp(-2.0) + math.exp(1.0)
    np.testing.assert_allclose(found.score, [[3.0, -2.0, 1.0]], rtol=1e-6)
    np.testing.assert_allclose(
        found.probability, [[math.exp(3.0) / total, math.exp(-2.0) / total, math.exp(1.0) / total]], rtol=1e-5
    )


@PROPERTY
@given(st.permutations(range(END)), st.integers(2, END), st.integers(0, 2**32 - 1))
def test_both_scorings_give_the_same_probabilities_where_all_first_tokens_differ(
    firsts: list[int], n_labels: int, seed: int
) -> None:
    tokens = [(first, *range(first)) for first in firsts[:n_labels]]
    random = np.random.default_rng(seed)
    head = dict(enumerate(random.normal(size=(N_TOKENS, N_EMBD)).astype(np.float32)))
    hidden = random.normal(size=(1, N_EMBD)).astype(np.float32)
    tree = scores_of([trie_of(*tokens)], head, hidden, rows([0]))
    first_token = scores_of([trie_of(*tokens, scoring="first_token")], head, hidden, rows([0]))
    np.testing.assert_array_equal(tree.probability, first_token.probability)
    np.testing.assert_allclose(np.exp(tree.score), tree.probability, rtol=1e-6)


def test_prompts_of_both_scorings_lie_side_by_side() -> None:
    tries = [
        trie_of((0,), (1,)),
        trie_of((0,), (1,), (2,), scoring="first_token"),
        trie_of((0, 1), (0, 2)),
    ]
    scorer = Scorer(tries, one_hot_rows())
    hidden = logits({0: 1.0, 1: 1.0}, {0: 4.0, 1: 2.0, 2: 3.0}, {1: 0.0, 2: math.log(3.0)})
    found = scores_of(tries, one_hot_rows(), hidden, rows([0, 1, 2]))
    assert scorer.first == [0, 2, 5, 7]
    assert scorer.n_positions == 3
    half = math.log(0.5)
    np.testing.assert_allclose(found.score, [[half, half, 4, 2, 3, math.log(0.25), math.log(0.75)]], rtol=1e-5)


def test_positions_may_share_a_row() -> None:
    tries = [trie_of((0,), (1,)), trie_of((1,), (0,))]
    found = scores_of(tries, one_hot_rows(), logits({}, {0: 1.0, 1: 2.0}), rows([1, 1]))
    p = math.exp(1.0) / (math.exp(1.0) + math.exp(2.0))
    np.testing.assert_allclose(found.probability, [[p, 1 - p, 1 - p, p]], rtol=1e-6)


def test_queries_read_their_own_rows() -> None:
    hidden = logits({0: 0.0, 1: 1.0}, {0: 1.0, 1: 0.0})
    found = scores_of([trie_of((0,), (1,), scoring="first_token")], one_hot_rows(), hidden, rows([1], [0], [1]))
    np.testing.assert_allclose(found.score, [[1, 0], [0, 1], [1, 0]])


@pytest.mark.parametrize("scoring", ["tree", "first_token"])
def test_large_logits_stay_finite(scoring: Scoring) -> None:
    trie = trie_of((0,), (1,), (2,), scoring=scoring)
    found = scores_of([trie], one_hot_rows(), logits({0: 1e4, 1: -1e4, 2: 1e4}), rows([0]))
    np.testing.assert_allclose(found.probability, [[0.5, 0.0, 0.5]], atol=1e-6)
    expected = [-math.log(2), -2e4 - math.log(2), -math.log(2)] if scoring == "tree" else [1e4, -1e4, 1e4]
    np.testing.assert_allclose(found.score, [expected], rtol=1e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("scoring", ["tree", "first_token"])
def test_a_hidden_state_that_is_not_finite_is_refused(scoring: Scoring, value: float) -> None:
    hidden = np.full((2, N_TOKENS), 1.0, np.float32)
    hidden[1, 0] = value
    with pytest.raises(ScoreError, match="not finite"):
        scores_of([trie_of((0,), (1,), scoring=scoring)], one_hot_rows(), hidden, rows([0], [1]))


def test_logits_that_overflow_are_refused() -> None:
    head = {0: np.full(2, 1e30, np.float32), 1: np.zeros(2, np.float32)}
    with pytest.raises(ScoreError, match="not finite"):
        scores_of([trie_of((0,), (1,))], head, np.full((1, 2), 1e30, np.float32), rows([0]))


@pytest.mark.parametrize("n_queries", [1, 4])
def test_large_models_are_scored_node_by_node_with_the_same_bits(
    n_queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(3)
    tries = [
        build_trie(("a", "b", "c", "d"), ((1, 2), (1, 3), (4,), (5,)), -1, "tree"),
        build_trie(("e", "f"), ((1,), (6,)), -1, "first_token"),
    ]
    rows = {token: random.standard_normal(64).astype(np.float32) for token in range(1, 7)}
    hidden = random.standard_normal((3 * n_queries, 64)).astype(np.float32)
    row = random.permutation(3 * n_queries).reshape(n_queries, 3)
    wanted = scores_of(tries, rows, hidden, row)
    monkeypatch.setattr(score, "_COPIED_FLOATS", 0)
    found = scores_of(tries, rows, hidden, row)
    np.testing.assert_array_equal(found.score, wanted.score)
    np.testing.assert_array_equal(found.probability, wanted.probability)


def test_one_scorer_for_requests_of_any_number_of_queries() -> None:
    """The arrays are reused and made anew: nothing of an earlier request is left in them."""
    random = np.random.default_rng(5)
    head = dict(enumerate(random.normal(size=(N_TOKENS, N_EMBD)).astype(np.float32)))
    tries = [trie_of((0,), (1,), (2,)), trie_of((3,), (4,), scoring="first_token")]
    scorer = Scorer(tries, head)
    for n_queries in (1, 3, 1, 1, 2, 4):
        hidden = random.normal(size=(2 * n_queries, N_EMBD)).astype(np.float32)
        row = np.arange(2 * n_queries, dtype=np.intp).reshape(n_queries, 2)
        found = scorer.score(hidden, np.repeat(row, (3, 2), axis=1))
        assert found.score.shape == found.probability.shape == (n_queries, 5)
        check_against_mirror(tries, head, hidden, row, found)
