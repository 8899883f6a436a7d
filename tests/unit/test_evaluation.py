"""What an evaluation and a comparison compute from answers and times, without a model."""

import json
import math
from typing import Any

import numpy as np
import pytest
from cases import cases
from made_prompts import made_prompt

from qcls_gguf.compare.method import WorkloadPrompt
from qcls_gguf.compare.run import method_record
from qcls_gguf.data.labelled import LabelledQuery
from qcls_gguf.evaluation.evaluate import LabelStatistics, Truth, joint_statistics, prompt_statistics, truth_of
from qcls_gguf.evaluation.report import confusion_table, likely_faults, word_notes
from qcls_gguf.score.result import LabelScore, PromptResult
from qcls_gguf.statistics import wilson

PROBABILITY = [
    [0.8, 0.1, 0.1],  # a is right
    [0.5, 0.3, 0.2],  # b would be
    [0.4, 0.35, 0.25],  # b and c would be, together 0.6
    [0.1, 0.1, 0.8],  # a and c are, together 0.9
    [0.0, 1.0, 0.0],  # a would be, and has no probability at all
]
ACCEPTED = ["a", "b", "bc", "ac", "a"]
PROMPT = made_prompt("p", [(1,), (2,), (3,)])


def answer(p: list[float]) -> PromptResult:
    scores = tuple(LabelScore(label, 0.0, value, 1) for label, value in zip("abc", p, strict=True))
    return PromptResult("p", "?", max(p), True, True, scores)


def scored(p: list[list[float]] = PROBABILITY, accepted: list[str] = ACCEPTED, *, abstains: bool = True) -> Any:
    is_right = np.array([[label in row for label in "abc"] for row in accepted], np.bool_).reshape(-1, 3)
    first = np.array(["abc".index(row[0]) for row in accepted], np.intp)
    truth = Truth(prompt=PROMPT, index=np.arange(len(p)), accepted=is_right, first=first)
    return prompt_statistics(truth, np.array(p).reshape(-1, 3), list(map(answer, p)) if abstains else None)


def test_the_whole_table() -> None:
    found, _ = scored()
    assert found.n_rows == 5
    assert found.accuracy == pytest.approx(2 / 5)
    assert found.accuracy_ci == pytest.approx([0.1176, 0.7693], abs=1e-4)
    logs = [math.log(p) for p in (0.8, 0.3, 0.6, 0.9, 1e-12)]
    assert found.log_loss == pytest.approx(-sum(logs) / 5)
    assert found.balanced_accuracy == pytest.approx((1 / 2 + 0 + 1) / 3)
    assert found.majority == pytest.approx(3 / 5), "a for all rows"
    assert (found.n_abstained, found.n_wrong) == (5, 0)
    # two rows at 0.8, both right; one each at 0.5, 0.4 and 1, all wrong
    assert found.ece == pytest.approx((2 * 0.2 + 0.5 + 0.4 + 1) / 5)
    bins = found.reliability
    assert len(bins) == 15
    assert {i: one_bin.n for i, one_bin in enumerate(bins) if one_bin.n} == {6: 1, 7: 1, 12: 2, 14: 1}
    assert bins[12].confidence == pytest.approx(0.8)
    assert bins[12].accuracy == 1
    assert bins[0].to_dict() == {"n": 0, "confidence": None, "accuracy": None}
    plain, _ = scored(abstains=False)
    assert plain == found.model_copy(update={"n_abstained": 0, "n_wrong": 3})


def test_labels_and_confusions() -> None:
    found, _ = scored()
    assert found.confusion_matrix == ((1, 1, 0), (2, 0, 0), (0, 0, 1))
    assert confusion_table("p", {"p": found}).rows == [("p", "b", "a", 2), ("p", "a", "b", 1)]
    assert found.labels == {
        "a": LabelStatistics(precision=1 / 3, recall=1 / 2, support=2, n_predicted=3),
        "b": LabelStatistics(precision=0, recall=0, support=2, n_predicted=1),
        "c": LabelStatistics(precision=1, recall=1, support=1, n_predicted=1),
    }
    assert found.macro_f1 == pytest.approx((2 / 5 + 0 + 1) / 3)
    one, _ = scored(PROBABILITY[:1], ["a"])
    assert one.labels["b"] == LabelStatistics(precision=None, recall=None, support=0, n_predicted=0)
    assert one.macro_f1 == 1  # of the labels that occur
    assert scored([[0.4, 0.4, 0.2]], ["b"])[0].accuracy == 0, "of equally probable labels the first is the answer"


@cases((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718))
def test_wilson_against_published_intervals(n_right: int, n: int, low: float, high: float) -> None:
    assert wilson(n_right, n) == pytest.approx((low, high), abs=5e-5)
    assert wilson(n - n_right, n) == pytest.approx((1 - high, 1 - low), abs=5e-5)


def test_without_rows_there_is_nothing_but_counts() -> None:
    found, _ = scored([], [])
    assert (found.n_rows, found.confusion_matrix) == (0, ((0, 0, 0),) * 3)
    for name in ("accuracy", "accuracy_ci", "balanced_accuracy", "majority", "macro_f1", "log_loss", "ece"):
        assert getattr(found, name) is None, name
    json.loads(found.to_json())


def test_prompts_together_are_all_their_rows() -> None:
    one, other = scored(PROBABILITY[:1], ["a"]), scored()
    found = joint_statistics([one, other])
    assert found.n_rows == 6
    assert found.accuracy == pytest.approx(3 / 6)
    assert found.majority == pytest.approx(4 / 6)
    assert found.macro_f1 == pytest.approx((1 + 1.4 / 3) / 2)
    assert found.balanced_accuracy == pytest.approx((1 + 0.5) / 2)


def test_rows_count_for_the_prompts_that_they_are_labelled_for() -> None:
    labels: list[dict[str, tuple[str, ...]]] = [{"q": ("a",)}, {"p": ("c", "a")}]
    truth = truth_of(PROMPT, [LabelledQuery(line=n, query="x", labels=those) for n, those in enumerate(labels, 1)])
    assert (truth.index.tolist(), truth.accepted.tolist(), truth.first.tolist()) == ([1], [[True, False, True]], [2])


@cases(
    ("a" * 30, "a" * 20 + "b" * 10, ["no better than one label for all rows (66.7% are right)", "never answers 'b'"]),
    ("a" * 28 + "bb", "a" * 18 + "b" * 12, ["answers 'a' for 93% of the rows"]),
    ("a" * 18 + "c" + "b" * 11, "a" * 18 + "c" * 10 + "bb", ["hardly ever finds"]),
    ("a" * 16 + "b" * 14, "a" * 15 + "b" * 15, []),
    ("a" * 19, "b" * 19, []),  # too few rows to say so
)
def test_what_is_likely_wrong_with_answers(answers: str, labels: str, words: list[str]) -> None:
    p = [[0.9 if name == label else 0.05 for name in "abc"] for label in answers]
    said = list(likely_faults(scored(p, list(labels), abstains=False)[0]))
    assert len(said) == len(words), said
    assert all(word in text for word, text in zip(words, said, strict=True)), said


DISTINCT, SHARED = (
    WorkloadPrompt(made_prompt("p", labels, closing=(9,), exact=True))
    for labels in ([(1,), (2,), (3, 2)], [(3, 2), (3, 4), (1,)])
)
LOGITS = np.array([0.5, 2.0, -1.0, 1.5, 0.0])


def test_distinct_first_tokens_are_read_at_one_node() -> None:
    assert [tokens.tolist() for tokens in DISTINCT.edge_tokens] == [[1, 2, 3]]
    assert DISTINCT.label_of_rows([LOGITS]) == "a"


def test_shared_first_tokens_are_read_along_the_tree() -> None:
    # 3 is a little likelier than 1 there, and shares its probability among two labels
    near = np.array([0.0, 1.0, 0.0, 1.5, 0.0])
    assert SHARED.label_of_rows([near, np.zeros(5)]) == "c"
    assert SHARED.label_of_rows([near, LOGITS]) == "b"


def test_first_tokens_alone_tell_what_they_can() -> None:
    assert DISTINCT.label_of_first_tokens({1: -0.5, 2: -2.0, 3: -1.0}) == "a"
    assert DISTINCT.label_of_first_tokens({2: -2.0}) == "b"
    assert DISTINCT.label_of_first_tokens({9: -0.1}) is None
    assert SHARED.label_of_first_tokens({3: -0.1, 1: -3.0}) is None
    assert SHARED.label_of_first_tokens({3: -3.1, 1: -1.0}) == "c"


OURS = ["a", "b"]
MS = np.array([[1.0, 2.0, 3.0], [2.0, 2.0, 2.0], [4.0, 2.0, 2.0]])


def compared(ms: Any, ours: Any = MS, answers: Any = OURS) -> Any:
    return method_record("naive", [], {"naive": ms, "qcls": ours}, {"naive": answers, "qcls": OURS})


def test_a_ratio_and_its_range_are_quantiles_of_the_rounds_ratios() -> None:
    times = np.array([[2.0], [3.0], [4.0]])
    found = compared(MS * times)
    assert (found.p50_ms, found.ratio_to_qcls) == (6.0, 3.0)
    assert found.ratio_range == pytest.approx([2.2, 3.8])
    # a slow round of both, whose times a ratio of all medians would mix up with those of the others
    slow = MS * np.array([[1.0], [100.0], [1.0]])
    assert compared(slow * times, slow).ratio_to_qcls == 3.0


@cases((["a", None], 1.0, 1), (["a", "a"], 0.5, 0), ([None] * 2, None, 2))
def test_agreement_counts_equal_winners(answers: list[str | None], equal: float | None, n_without: int) -> None:
    found = compared(MS, answers=answers)
    assert (found.as_scoring, found.n_without_answer) == (equal, n_without)


@cases((0.52, False), (0.54, True), (0.4, False))
def test_words_are_enough_where_they_are_as_good_and_better_than_one_label(words: float, is_said: bool) -> None:
    found, _ = scored([[0.9, 0.05, 0.05]] * 10, ["a"] * 5 + ["b"] * 5, abstains=False)  # as good as one label
    assert bool([*word_notes(found, words)]) == is_said
