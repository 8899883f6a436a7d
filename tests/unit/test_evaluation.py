"""Every statistic on a table small enough to be worked by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from qcls_gguf.data.labelled import LabelledQuery
from qcls_gguf.evaluation.metrics import (
    LabelledProbabilities,
    calibration_error,
    overall_statistics,
    prompt_statistics,
    reliability,
    row_outcomes,
)
from qcls_gguf.evaluation.modes import compared_prompts, mode_statistics
from qcls_gguf.evaluation.passes import PromptScores, RowScores
from qcls_gguf.evaluation.records import Confusion, Coverage, LabelStatistics, ModeStatistics, ReliabilityBin
from qcls_gguf.prompts.compiled import Prompt
from qcls_gguf.prompts.trie import build_trie
from qcls_gguf.statistics import wilson

PROBABILITY = [
    [0.8, 0.1, 0.1],  # a is right
    [0.5, 0.3, 0.2],  # b would be
    [0.4, 0.35, 0.25],  # b and c would be, together 0.6
    [0.1, 0.1, 0.8],  # a and c are, together 0.9
    [0.0, 1.0, 0.0],  # a would be, and has no probability at all
]
ACCEPTED = ["a", "b", "bc", "ac", "a"]


def scored(
    probability: list[list[float]] = PROBABILITY, accepted: list[str] = ACCEPTED, *, exact: bool = True
) -> LabelledProbabilities:
    n = len(probability)
    return LabelledProbabilities(
        labels=("a", "b", "c"),
        probability=np.array(probability, np.float64).reshape(-1, 3),
        accepted=np.array([[label in row for label in "abc"] for row in accepted]).reshape(-1, 3),
        true=np.array(["abc".index(row[0]) for row in accepted], np.intp),
        joint_winner=np.array([0, 1, 0, 2, 1][:n], np.intp) if exact else None,
        label_mass=np.array([1, 0.5, 0.6, 0.7, 0.2][:n]) if exact else None,
    )


def test_the_whole_table() -> None:
    found, _ = prompt_statistics(scored())
    assert found.n_rows == 5
    assert found.accuracy == pytest.approx(2 / 5)
    assert found.accuracy_ci == pytest.approx([0.1176, 0.7693], abs=1e-4)
    logs = [math.log(p) for p in (0.8, 0.3, 0.6, 0.9, 1e-12)]
    assert found.log_loss == pytest.approx(-sum(logs) / 5)
    assert found.n_clipped == 1
    assert found.brier == pytest.approx((0.06 + 0.78 + 0.32 + 0.02 + 2) / 5)
    # two rows at 0.8, both right; one each at 0.5, 0.4 and 1, all wrong
    assert found.ece == pytest.approx((2 * 0.2 + 0.5 + 0.4 + 1) / 5)
    assert found.agreement_with_joint == pytest.approx(4 / 5)
    assert found.label_mass is not None
    assert found.label_mass.to_dict() == pytest.approx({"mean": 0.6, "p10": 0.32, "min": 0.2})
    assert found.n_non_finite == 0


def test_labels_and_confusions() -> None:
    found, _ = prompt_statistics(scored())
    assert found.confusion_matrix == ((1, 1, 0), (2, 0, 0), (0, 0, 1))
    assert found.confusions == (Confusion(label="b", answer="a", n=2), Confusion(label="a", answer="b", n=1))
    assert found.labels == {
        "a": LabelStatistics(precision=1 / 3, recall=1 / 2, f1=2 / 5, support=2, n_predicted=3),
        "b": LabelStatistics(precision=0, recall=0, f1=0, support=2, n_predicted=1),
        "c": LabelStatistics(precision=1, recall=1, f1=1, support=1, n_predicted=1),
    }
    assert found.macro_f1 == pytest.approx((2 / 5 + 0 + 1) / 3)


def test_a_label_that_never_occurs_is_left_out_of_macro_f1() -> None:
    found, _ = prompt_statistics(scored(PROBABILITY[:1], ["a"]))
    assert found.labels["b"] == LabelStatistics(precision=None, recall=None, f1=None, support=0, n_predicted=0)
    assert found.macro_f1 == 1


def test_coverage() -> None:
    coverage = {point.threshold: point for point in prompt_statistics(scored())[0].coverage}
    assert list(coverage) == [0.5, 0.7, 0.8, 0.9, 0.95, 0.99]
    assert coverage[0.5] == Coverage(threshold=0.5, n=4, coverage=0.8, accuracy=0.5)
    assert coverage[0.8].to_dict() == {"threshold": 0.8, "n": 3, "coverage": 0.6, "accuracy": pytest.approx(2 / 3)}
    assert coverage[0.99] == Coverage(threshold=0.99, n=1, coverage=0.2, accuracy=0)


def test_coverage_of_nothing_has_no_accuracy() -> None:
    coverage = prompt_statistics(scored(PROBABILITY[:1], ["a"]))[0].coverage
    assert coverage[-1] == Coverage(threshold=0.99, n=0, coverage=0, accuracy=None)


@pytest.mark.parametrize(
    ("n_right", "n", "low", "high"),
    # R. G. Newcombe, Two-sided confidence intervals for the single proportion, 1998, table I, method 3
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_against_published_intervals(n_right: int, n: int, low: float, high: float) -> None:
    assert wilson(n_right, n) == pytest.approx((low, high), abs=5e-5)
    assert wilson(n - n_right, n) == pytest.approx((1 - high, 1 - low), abs=5e-5)


def test_wilson_of_nothing() -> None:
    assert wilson(0, 0) is None


def test_reliability_bins_hold_every_row_once() -> None:
    bins = reliability(row_outcomes(scored()))
    assert len(bins) == 15
    assert {i: one_bin.n for i, one_bin in enumerate(bins) if one_bin.n} == {6: 1, 7: 1, 12: 2, 14: 1}
    assert bins[12].confidence == pytest.approx(0.8)
    assert bins[12].accuracy == 1
    assert bins[0] == ReliabilityBin(low=0, high=1 / 15, n=0, confidence=None, accuracy=None)


def test_perfect_calibration_has_no_error() -> None:
    rows = [[0.75, 0.25, 0.0]] * 4
    assert calibration_error(reliability(row_outcomes(scored(rows, ["a", "a", "a", "b"])))) == pytest.approx(0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_rows_that_are_not_finite_are_counted_and_left_out(value: float) -> None:
    found, _ = prompt_statistics(scored([*PROBABILITY[:4], [0.2, value, 0.8]]))
    clean, _ = prompt_statistics(scored(PROBABILITY[:4], ACCEPTED[:4]))
    assert (found.n_non_finite, clean.n_non_finite) == (1, 0)
    assert found.model_copy(update={"n_non_finite": 0}) == clean


def test_without_rows_there_is_nothing_but_counts() -> None:
    found, _ = prompt_statistics(scored([], []))
    assert (found.n_rows, found.n_clipped, found.confusions) == (0, 0, ())
    for name in ("accuracy", "accuracy_ci", "macro_f1", "log_loss", "brier", "ece", "agreement_with_joint"):
        assert getattr(found, name) is None, name
    assert found.label_mass is None
    json.loads(found.to_json())


def test_without_joint_there_is_no_agreement() -> None:
    found, _ = prompt_statistics(scored(exact=False))
    assert found.agreement_with_joint is None
    assert found.label_mass is None


def test_equal_probabilities_are_won_by_the_first() -> None:
    assert row_outcomes(scored([[0.4, 0.4, 0.2]], ["b"])).right.tolist() == [False]


def test_prompts_together_are_all_their_rows() -> None:
    first = prompt_statistics(scored(PROBABILITY[:1], ["a"]))
    second = prompt_statistics(scored())
    found = overall_statistics([first, second])
    assert found.n_rows == 6
    assert found.accuracy == pytest.approx(3 / 6)
    assert found.brier == pytest.approx((0.06 + 3.18) / 6)
    assert found.macro_f1 == pytest.approx((1 + 1.4 / 3) / 2)
    assert found.agreement_with_joint == pytest.approx(5 / 6)


# reading


def trie_prompt(name: str, *tokens: tuple[int, ...]) -> Prompt:
    labels = tuple("abc"[: len(tokens)])
    trie = build_trie(labels, tokens, -1, "tree")
    return Prompt(
        name=name, labels=labels, label_tokens=tokens, trie=trie, before="", after="", head=(), stable=(), tail=()
    )


def test_modes_are_compared_on_the_prompts_that_each_can_score() -> None:
    """`first_token` cannot score `alike`, whose labels begin with the same token, so that modes leave it out."""
    alike, differing = trie_prompt("alike", (1, 2), (1, 3)), trie_prompt("differing", (4,), (5,))
    rows = [LabelledQuery(line=1, query="q", labels={"alike": ("b",), "differing": ("a",)})]
    of_prompt = PromptScores(tree=[math.log(0.75), math.log(0.25)])
    scores = [RowScores(prompts={"alike": of_prompt, "differing": of_prompt})]
    found = mode_statistics(("first_token", "tree"), [alike, differing], rows, scores, {}, exact=False)
    first, tree = found["first_token"], found["tree"]
    assert isinstance(first, ModeStatistics)
    assert isinstance(tree, ModeStatistics)
    assert (first.accuracy, first.n_rows, first.n_prompts) == (1, 1, 1)
    assert (tree.accuracy, tree.n_rows, tree.n_prompts) == (0.5, 2, 2)
    assert first.compared is not None
    assert tree.compared is not None
    assert (first.compared.accuracy, first.compared.n_rows) == (tree.compared.accuracy, tree.compared.n_rows) == (1, 1)
    assert compared_prompts(("first_token", "tree"), [alike, differing]) == ("differing",)
    assert compared_prompts(("tree",), [alike, differing]) is None
    assert compared_prompts(("first_token", "tree"), [alike]) is None  # nothing is left to compare with
    only = mode_statistics(("tree",), [alike, differing], rows, scores, {}, exact=False)["tree"]
    assert isinstance(only, ModeStatistics)
    assert only.compared is None
