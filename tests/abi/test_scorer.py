"""The scorer and its arithmetic in C: what is refused, what is large, what is used again."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cases import cases

from qcls_gguf.config.scoring import Scoring
from qcls_gguf.errors import PlanError, ScoreError
from qcls_gguf.native.arithmetic import trie_arrays
from qcls_gguf.prompts.trie import LabelTrie, build_trie
from qcls_gguf.score import scorer as scorer_module
from qcls_gguf.score.rows import Output, RowLayout
from qcls_gguf.score.scorer import LabelScores

END = 6
N_TOKENS = 7
N_EMBD = 5

Float32Array = npt.NDArray[np.float32]
IndexArray = npt.NDArray[np.intp]
Path = tuple[int, ...]
Scorer = partial(scorer_module.Scorer, arithmetic=trie_arrays)
LAYOUT = RowLayout(N_EMBD)


def trie_of(*tokens: Path, scoring: Scoring = "tree") -> LabelTrie:
    return build_trie([str(path) for path in tokens], tokens, END, scoring)


def scores_of(
    tries: Sequence[LabelTrie], head: dict[int, Float32Array], hidden: Float32Array, row: IndexArray
) -> LabelScores:
    """Scores of queries whose read nodes are in these rows, (n_queries, n_positions), from a scorer of their own."""
    n_edges = [sum(edge.node == node for edge in trie.edges) for trie in tries for node in trie.read]
    return Scorer(tries, head).score(hidden, LAYOUT, np.repeat(row, n_edges, axis=1))


def rows(*numbers: Sequence[int]) -> IndexArray:
    return np.array(numbers, np.intp)


@pytest.mark.parametrize("scoring", ["tree", "first_token"])
def test_large_logits_stay_finite(scoring: Scoring) -> None:
    trie = trie_of((0,), (1,), (2,), scoring=scoring)
    one_hot = dict(enumerate(np.eye(3, dtype=np.float32)))  # of which a hidden state is the logits
    found = scores_of([trie], one_hot, np.array([[1e4, -1e4, 1e4]], np.float32), rows([0]))
    np.testing.assert_allclose(found.probability, [[0.5, 0.0, 0.5]], atol=1e-6)
    expected = [-math.log(2), -2e4 - math.log(2), -math.log(2)] if scoring == "tree" else [1e4, -1e4, 1e4]
    np.testing.assert_allclose(found.score, [expected], rtol=1e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("scoring", ["tree", "first_token"])
@pytest.mark.parametrize("output", [Output(), Output(cap=2.0)], ids=str)
def test_what_is_not_finite_is_refused(output: Output, scoring: Scoring, value: float) -> None:
    """A cap hides no hidden state; 1e30 is finite, its logits are not."""
    head = {0: np.full(2, 1e30, np.float32), 1: np.zeros(2, np.float32)}
    scorer = Scorer([trie_of((0,), (1,), scoring=scoring)], head, output=output)
    with pytest.raises(ScoreError, match="not finite"):
        scorer.score(np.array([[1e-30, 1], [value, 1]], np.float32), LAYOUT, rows([0, 0], [1, 1]))


def test_what_no_answer_reads_is_not_computed() -> None:
    """Heads answer every prompt: rows that hold nothing of use are not multiplied with."""
    tries, head = [trie_of((0,), (1,))], {token: np.full(N_EMBD, np.nan, np.float32) for token in (0, 1)}
    hidden, row = np.ones((2, N_EMBD), np.float32), rows([0, 0], [1, 1])
    with pytest.raises(ScoreError, match="not finite"):
        Scorer(tries, head).score(hidden, LAYOUT, row)
    found = Scorer(tries, head, reads_labels=False).score(hidden, LAYOUT, row)
    assert found.score.tolist() == found.probability.tolist() == [[0.0, 0.0]] * 2


@pytest.mark.parametrize("n_queries", [1, 4])
def test_large_models_are_scored_by_node_with_the_same_bits(n_queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(3)
    tries = [trie_of((1, 2), (1, 3), (4,), (5,)), trie_of((1,), (6,), scoring="first_token")]
    rows = {token: random.standard_normal(64).astype(np.float32) for token in range(1, 7)}
    hidden = random.standard_normal((3 * n_queries, 64)).astype(np.float32)
    row = random.permutation(3 * n_queries).reshape(n_queries, 3)
    wanted = scores_of(tries, rows, hidden, row)
    monkeypatch.setattr(scorer_module, "_COPIED_FLOATS", 0)
    found = scores_of(tries, rows, hidden, row)
    np.testing.assert_array_equal(found.score, wanted.score)
    np.testing.assert_array_equal(found.probability, wanted.probability)


def test_one_scorer_for_requests_of_any_number_of_queries() -> None:
    """The arrays are reused and made anew: nothing of an earlier request is left in them. How a set of prompts is
    scored, and each row by whom it is read, is compared with stock logits in tests/model/test_oracle.py."""
    random = np.random.default_rng(5)
    head = dict(enumerate(random.normal(size=(N_TOKENS, N_EMBD)).astype(np.float32)))
    tries = [trie_of((0,), (1,), (2,)), trie_of((3,), (4,), scoring="first_token")]
    scorer = Scorer(tries, head)
    assert scorer.first == [0, 3, 5]
    for n_queries in (1, 3, 1, 1, 2, 4):
        hidden = random.normal(size=(2 * n_queries, N_EMBD)).astype(np.float32)
        row = np.arange(2 * n_queries, dtype=np.intp).reshape(n_queries, 2)
        found = scorer.score(hidden, LAYOUT, np.repeat(row, (3, 2), axis=1))
        wanted = scores_of(tries, head, hidden, row)
        for array, other in ((found.score, wanted.score), (found.probability, wanted.probability)):
            assert (array.shape, str(array.dtype)) == ((n_queries, 5), "float32")
            np.testing.assert_array_equal(array, other)


def layout(**changed: list[int]) -> dict[str, Any]:
    arrays = {"node_start": [0, 2, 4], "label_start": [0, 1, 3], "label_edge": [0, 1, 3], **changed}
    return {name: np.array(values, np.int32) for name, values in arrays.items()}


@cases(
    ("node_start", [1, 2, 4]),
    ("node_start", [0, 2, 2]),
    ("node_start", [0, 3, 1]),
    ("label_start", [0, 1, 4]),
    ("label_start", [0, 0, 3]),
    ("label_edge", [0, 1, 4]),
    ("label_edge", [0, -1, 3]),
)
def test_a_layout_that_does_not_fit_is_refused(name: str, values: list[int]) -> None:
    trie_arrays(**layout())
    with pytest.raises(PlanError, match="must"):
        trie_arrays(**layout(**{name: values}))
    with pytest.raises(PlanError, match="int32"):
        trie_arrays(**{**layout(), name: layout()[name].astype(np.int64)})
