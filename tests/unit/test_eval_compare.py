"""Two scorings of the same rows: flips, differences, and the orders of labels they may come from."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from qcls_gguf.data.labelled import LabelledQuery
from qcls_gguf.evaluation.changes import N_LISTED, changes, differences, listed_flips
from qcls_gguf.evaluation.label_order import label_orders
from qcls_gguf.evaluation.passes import PromptScores, RowScores
from qcls_gguf.evaluation.robustness_records import Differences
from qcls_gguf.prompts.compiled import Prompt
from qcls_gguf.prompts.trie import build_trie

LABELS = ("a", "b", "c")
PROMPT = Prompt(
    name="p",
    labels=LABELS,
    label_tokens=((1,), (2,), (3,)),
    trie=build_trie(LABELS, ((1,), (2,), (3,)), -1, "tree"),
    before="",
    after="",
    head=(),
    stable=(),
    tail=(9,),
)


def rows(n: int) -> list[LabelledQuery]:
    return [LabelledQuery(line=i + 1, query=f"query {i}", labels={"p": ("a",)}) for i in range(n)]


def scores(*probabilities: Sequence[float] | None) -> list[RowScores]:
    return [
        RowScores(error="not finite")
        if p is None
        else RowScores(prompts={"p": PromptScores(tree=[math.log(each) if each else -math.inf for each in p])})
        for p in probabilities
    ]


def test_a_flip_is_another_winner_and_a_difference_the_largest_of_the_labels() -> None:
    before = scores((0.5, 0.3, 0.2), (0.4, 0.35, 0.25), (0.2, 0.2, 0.6), None, (1, 0, 0))
    after = scores((0.45, 0.25, 0.3), (0.3, 0.45, 0.25), (0.3, 0.3, 0.4), (1, 0, 0), None)
    found = changes("tree", PROMPT, rows(5), before, after)
    assert [change.is_flip for change in found] == [False, True, False]
    assert [change.difference for change in found] == pytest.approx([0.1, 0.1, 0.2])
    assert differences(found).to_dict() == {
        "largest_probability_difference": pytest.approx(0.2),
        "mean_probability_difference": pytest.approx(0.4 / 3),
    }
    (flip,) = listed_flips(found)
    assert (flip.line, flip.answer, flip.other_answer) == (2, "a", "b")
    assert flip.probability == pytest.approx(0.4)
    assert flip.other_probability == pytest.approx(0.45)
    assert flip.margin == pytest.approx(0.05)
    assert "rendering" not in flip.to_dict()


def test_no_rows_have_no_differences() -> None:
    found = changes("tree", PROMPT, rows(1), scores(None), scores((1, 0, 0)))
    assert found == []
    assert differences(found) == Differences(largest_probability_difference=None, mean_probability_difference=None)


def test_the_flips_that_moved_furthest_are_listed_first() -> None:
    n = N_LISTED + 3
    before = scores(*[(0.6, 0.4, 0.0)] * n)
    after = scores(*[(0.4 - i / 100, 0.6 + i / 100, 0.0) for i in range(n)])
    listed = listed_flips(changes("tree", PROMPT, rows(n), before, after, rendering=2))
    assert [flip.line for flip in listed] == list(range(n, n - N_LISTED, -1))
    assert {flip.rendering for flip in listed} == {2}


@pytest.mark.parametrize("n", [2, 3, 4, 18])
def test_orders_of_labels_are_others_and_distinct_while_there_are_any(n: int) -> None:
    labels = tuple(f"label {i}" for i in range(n))
    orders = label_orders(labels, 8, "0 colour")
    assert len(orders) == 8
    assert labels not in orders
    assert all(sorted(order) == sorted(labels) for order in orders)
    n_others = math.factorial(n) - 1
    assert len(set(orders[:n_others])) == min(8, n_others)
    assert orders == label_orders(labels, 8, "0 colour")
    assert orders[:3] == label_orders(labels, 3, "0 colour")
    if n > 3:
        assert orders != label_orders(labels, 8, "1 colour")
