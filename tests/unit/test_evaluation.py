"""Every statistic on a table small enough to be worked by hand; the same rows compared."""

import json
import math

import numpy as np
import pytest
from made_prompts import made_prompt

from qcls_gguf.config.scoring import Scoring
from qcls_gguf.data.labelled import LabelledQuery
from qcls_gguf.evaluation.metrics import (
    Outcomes,
    compared_prompts,
    mode_statistics,
    overall_statistics,
    prompt_statistics,
)
from qcls_gguf.evaluation.passes import PromptScores, Truth, probabilities_of, score_tables, truth_of
from qcls_gguf.evaluation.records import (
    Confusion,
    Coverage,
    LabelStatistics,
    ModeStatistics,
    PromptStatistics,
    ReliabilityBin,
)
from qcls_gguf.statistics import wilson

PROBABILITY = [
    [0.8, 0.1, 0.1],  # a is right
    [0.5, 0.3, 0.2],  # b would be
    [0.4, 0.35, 0.25],  # b and c would be, together 0.6
    [0.1, 0.1, 0.8],  # a and c are, together 0.9
    [0.0, 1.0, 0.0],  # a would be, and has no probability at all
]
ACCEPTED = ["a", "b", "bc", "ac", "a"]
JOINT = np.eye(3)[[0, 1, 0, 2, 1]]  # its answers
MASS = np.array([1, 0.5, 0.6, 0.7, 0.2])


PROMPT = made_prompt("p", [(1,), (2,), (3,)])


def scored(
    probability: list[list[float]] = PROBABILITY, accepted: list[str] = ACCEPTED, *, exact: bool = True
) -> tuple[PromptStatistics, Outcomes]:
    n = len(probability)
    truth = Truth(
        prompt=PROMPT,
        index=np.arange(n),
        accepted=np.array([[label in row for label in "abc"] for row in accepted]).reshape(-1, 3),
        first=np.array(["abc".index(row[0]) for row in accepted], np.intp),
    )
    p = np.array(probability, np.float64).reshape(-1, 3)
    return prompt_statistics(truth, p, JOINT[:n], MASS[:n]) if exact else prompt_statistics(truth, p)


def test_the_whole_table() -> None:
    found, _ = scored()
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
    bins = found.reliability
    assert len(bins) == 15
    assert {i: one_bin.n for i, one_bin in enumerate(bins) if one_bin.n} == {6: 1, 7: 1, 12: 2, 14: 1}
    assert bins[12].confidence == pytest.approx(0.8)
    assert bins[12].accuracy == 1
    assert bins[0] == ReliabilityBin(low=0, high=1 / 15, n=0, confidence=None, accuracy=None)
    coverage = {point.threshold: point for point in found.coverage}
    assert list(coverage) == [0.5, 0.7, 0.8, 0.9, 0.95, 0.99]
    assert coverage[0.8].to_dict() == {"threshold": 0.8, "n": 3, "coverage": 0.6, "accuracy": pytest.approx(2 / 3)}
    assert coverage[0.99] == Coverage(threshold=0.99, n=1, coverage=0.2, accuracy=0)
    plain, _ = scored(exact=False)
    assert plain == found.model_copy(update={"agreement_with_joint": None, "label_mass": None})


def test_labels_and_confusions() -> None:
    found, _ = scored()
    assert found.confusion_matrix == ((1, 1, 0), (2, 0, 0), (0, 0, 1))
    assert found.confusions == (Confusion(label="b", answer="a", n=2), Confusion(label="a", answer="b", n=1))
    assert found.labels == {
        "a": LabelStatistics(precision=1 / 3, recall=1 / 2, f1=2 / 5, support=2, n_predicted=3),
        "b": LabelStatistics(precision=0, recall=0, f1=0, support=2, n_predicted=1),
        "c": LabelStatistics(precision=1, recall=1, f1=1, support=1, n_predicted=1),
    }
    assert found.macro_f1 == pytest.approx((2 / 5 + 0 + 1) / 3)
    one, _ = scored(PROBABILITY[:1], ["a"])
    assert one.labels["b"] == LabelStatistics(precision=None, recall=None, f1=None, support=0, n_predicted=0)
    assert one.macro_f1 == 1  # of the labels that occur
    assert scored([[0.4, 0.4, 0.2]], ["b"])[0].accuracy == 0, "of equally probable labels the first is the answer"
    assert one.coverage[-1] == Coverage(threshold=0.99, n=0, coverage=0, accuracy=None)


@pytest.mark.parametrize(
    ("n_right", "n", "low", "high"),
    # R. G. Newcombe, Two-sided confidence intervals for the single proportion, 1998, table I, method 3
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_against_published_intervals(n_right: int, n: int, low: float, high: float) -> None:
    assert wilson(n_right, n) == pytest.approx((low, high), abs=5e-5)
    assert wilson(n - n_right, n) == pytest.approx((1 - high, 1 - low), abs=5e-5)


def test_without_rows_there_is_nothing_but_counts() -> None:
    found, _ = scored([], [])
    assert (found.n_rows, found.n_clipped, found.confusions) == (0, 0, ())
    for name in ("accuracy", "accuracy_ci", "macro_f1", "log_loss", "brier", "ece", "agreement_with_joint"):
        assert getattr(found, name) is None, name
    assert found.label_mass is None
    json.loads(found.to_json())


def test_prompts_together_are_all_their_rows() -> None:
    found = overall_statistics([scored(PROBABILITY[:1], ["a"]), scored()])
    assert found.n_rows == 6
    assert found.accuracy == pytest.approx(3 / 6)
    assert found.brier == pytest.approx((0.06 + 3.18) / 6)
    assert found.macro_f1 == pytest.approx((1 + 1.4 / 3) / 2)
    assert found.agreement_with_joint == pytest.approx(5 / 6)


def test_modes_are_compared_on_the_prompts_that_each_can_score() -> None:
    """`first_token` cannot score `alike`, whose labels begin with the same token, so that modes leave it out."""
    prompts = [made_prompt("alike", [(1, 2), (1, 3)]), made_prompt("differing", [(4,), (5,)])]
    rows = [LabelledQuery(line=1, query="q", labels={"alike": ("b",), "differing": ("a",)})]
    of_prompt = PromptScores(by_scoring={"tree": [math.log(0.75), math.log(0.25)]})
    tables = score_tables(prompts, [{"alike": of_prompt, "differing": of_prompt}])

    def statistics(*modes: Scoring) -> list[ModeStatistics]:
        probabilities = {mode: probabilities_of(mode, prompts, tables) for mode in modes}
        truths = [truth_of(prompt, rows) for prompt in prompts]
        common = compared_prompts(modes, prompts)
        found = {mode: mode_statistics(mode, p, truths, tables, common) for mode, p in probabilities.items()}
        return [each for each in found.values() if isinstance(each, ModeStatistics)]

    first, tree = statistics("first_token", "tree")
    assert (first.accuracy, first.n_rows, first.n_prompts) == (1, 1, 1)
    assert (tree.accuracy, tree.n_rows, tree.n_prompts) == (0.5, 2, 2)
    assert first.compared is not None
    assert tree.compared is not None
    assert (first.compared.accuracy, first.compared.n_rows) == (tree.compared.accuracy, tree.compared.n_rows) == (1, 1)
    assert compared_prompts(("first_token", "tree"), prompts) == ("differing",)
    assert compared_prompts(("tree",), prompts) is None
    assert compared_prompts(("first_token", "tree"), prompts[:1]) is None  # nothing is left to compare with
    assert statistics("tree")[0].compared is None
