"""Every scoring on a small table of probabilities, worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from qcls_gguf.config.scoring import Scoring
from qcls_gguf.prompts.trie import build_trie
from qcls_gguf.score.scorer import LabelScores, Scorer

# At the prompt's end: a 0.2, b 0.5, anything else 0.3. Behind b: c 0.4, d 0.1, end 0.25, anything else 0.25.
A, B, C, D, END = range(5)
TOKENS = np.arange(5, dtype=np.int32)
PROMPT_END = {A: 0.2, B: 0.5}
BEHIND_B = {C: 0.4, D: 0.1, END: 0.25}
LOG_SUM = {0: 3.0, 1: -7.0}  # of the logits of each node: any value gives the same probabilities


def row(probabilities: dict[int, float], log_sum: float) -> list[float]:
    """A hidden state that is its own logits, then the label tokens' logits and the log-sum-exp."""
    logits = [math.log(probabilities.get(token, 1e-9)) + log_sum for token in range(5)]
    return [*logits, *logits, log_sum]


def scores(labels: list[tuple[int, ...]], scoring: Scoring) -> LabelScores:
    trie = build_trie([str(path) for path in labels], labels, END, scoring, exact=True)
    heads = dict(enumerate(np.eye(5, dtype=np.float32)))
    hidden = np.array([row(PROMPT_END, LOG_SUM[0]), row(BEHIND_B, LOG_SUM[1])], np.float32)
    rows = np.array([[trie.read.index(edge.node) for edge in trie.edges]])
    return Scorer([trie], heads, TOKENS).score(hidden, rows)


def test_joint_is_the_probability_of_all_tokens() -> None:
    found = scores([(A,), (B, C)], "joint")
    assert np.exp(found.score[0]) == pytest.approx([0.2, 0.5 * 0.4])
    assert found.probability[0] == pytest.approx([0.5, 0.5])


def test_mean_is_per_token() -> None:
    found = scores([(A,), (B, C)], "mean")
    assert np.exp(found.score[0]) == pytest.approx([0.2, math.sqrt(0.2)])
    assert found.probability[0] == pytest.approx(
        [0.2 / (0.2 + math.sqrt(0.2)), math.sqrt(0.2) / (0.2 + math.sqrt(0.2))]
    )


def test_tree_and_first_token_come_from_the_same_nodes() -> None:
    assert scores([(A,), (B, C)], "tree").probability[0] == pytest.approx([0.2 / 0.7, 0.5 / 0.7])
    found = scores([(A,), (B, C)], "first_token")
    assert found.probability[0] == pytest.approx([0.2 / 0.7, 0.5 / 0.7])
    assert found.score[0] == pytest.approx([math.log(0.2) + LOG_SUM[0], math.log(0.5) + LOG_SUM[0]])


def test_tree_splits_among_siblings() -> None:
    found = scores([(A,), (B, C), (B, D)], "tree")
    assert found.probability[0] == pytest.approx([0.2 / 0.7, 0.5 / 0.7 * 0.8, 0.5 / 0.7 * 0.2])


def test_a_label_that_another_begins_with_ends_in_the_end_token() -> None:
    found = scores([(B,), (B, C)], "joint")
    assert np.exp(found.score[0]) == pytest.approx([0.5 * 0.25, 0.5 * 0.4])
    assert np.exp(scores([(B,), (B, C)], "mean").score[0]) == pytest.approx([math.sqrt(0.125), math.sqrt(0.2)])


def test_label_mass_is_what_the_labels_have_of_the_vocabulary() -> None:
    found = scores([(A,), (B, C), (B, D)], "tree").exact
    assert found is not None
    assert found.label_mass[0] == pytest.approx([0.2 + 0.5 * 0.4 + 0.5 * 0.1])
    assert np.exp(found.joint[0]) == pytest.approx([0.2, 0.2, 0.05])


def test_without_label_logits_there_are_no_exact_scores() -> None:
    trie = build_trie(["a", "b"], [(A,), (B,)], END, "tree")
    heads = dict(enumerate(np.eye(5, dtype=np.float32)))
    hidden = np.array([row(PROMPT_END, 0.0)[:5]], np.float32)
    assert Scorer([trie], heads).score(hidden, np.zeros((1, 2), np.intp)).exact is None
