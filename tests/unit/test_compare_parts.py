"""What a comparison computes from answers and times, without a model."""

import math

import numpy as np
import pytest
from made_prompts import made_prompt

from qcls_gguf.compare.method import Answer, WorkloadPrompt
from qcls_gguf.compare.run import method_record

DISTINCT, SHARED = (
    WorkloadPrompt(made_prompt("p", labels, closing=(9,), exact=True))
    for labels in ([(1,), (2,), (3, 2)], [(3, 2), (3, 4), (1,)])
)
LOGITS = np.array([0.5, 2.0, -1.0, 1.5, 0.0])


def log_p(logits: np.ndarray, token: int) -> float:
    return float(logits[token] - math.log(np.exp(logits).sum()))


def test_distinct_first_tokens_are_read_at_one_node() -> None:
    assert [tokens.tolist() for tokens in DISTINCT.edge_tokens] == [[1, 2, 3]]
    found = DISTINCT.answer_of_rows([LOGITS], exact=True)
    assert found.joint[:2] == pytest.approx([log_p(LOGITS, token) for token in (1, 2)])
    assert found.joint[2] is None  # its second token is not read
    assert found.label == "a"
    assert DISTINCT.answer_of_rows([LOGITS], exact=False).joint == ()


def test_shared_first_tokens_are_read_along_the_tree() -> None:
    other = LOGITS[::-1].copy()
    found = SHARED.answer_of_rows([LOGITS, other], exact=True)
    assert found.joint == pytest.approx(
        [log_p(LOGITS, 3) + log_p(other, 2), log_p(LOGITS, 3) + log_p(other, 4), log_p(LOGITS, 1)]
    )
    # 3 is a little likelier than 1 there, and shares its probability among two labels
    near = np.array([0.0, 1.0, 0.0, 1.5, 0.0])
    assert SHARED.answer_of_rows([near, np.zeros(5)], exact=False).label == "c"
    assert SHARED.answer_of_rows([near, LOGITS], exact=False).label == "b"


def test_first_tokens_alone_tell_what_they_can() -> None:
    found = DISTINCT.answer_of_first_tokens({1: -0.5, 2: -2.0, 3: -1.0})
    assert found == Answer(label="a", joint=(-0.5, -2.0, None))
    assert DISTINCT.answer_of_first_tokens({2: -2.0}) == Answer(label="b", joint=(None, -2.0, None))
    assert DISTINCT.answer_of_first_tokens({9: -0.1}) == Answer(label=None, joint=(None, None, None))
    assert SHARED.answer_of_first_tokens({3: -0.1, 1: -3.0}) == Answer(label=None, joint=(None, None, -3.0))
    assert SHARED.answer_of_first_tokens({3: -3.1, 1: -1.0}).label == "c"


REFERENCES = [Answer(label="b", joint=(-1.0, -0.5)), Answer(label="b", joint=(-3.0, -0.1))]
OURS = [Answer(label="a"), Answer(label="b")]
MS = np.array([[1.0, 2.0, 3.0], [2.0, 2.0, 2.0], [4.0, 2.0, 2.0]])


def test_a_ratio_and_its_range_are_quantiles_of_the_rounds_ratios() -> None:
    times = np.array([[2.0], [3.0], [4.0]])
    found = method_record("qcls", [], MS * times, MS, OURS, OURS, REFERENCES)
    assert found.p50_ms == 6.0
    assert found.ratio_to_qcls == 3.0
    assert found.ratio_range == pytest.approx([2.2, 3.8])
    # a slow round of both, whose times a ratio of all medians would mix up with those of the others
    slow = MS * np.array([[1.0], [100.0], [1.0]])
    assert method_record("qcls", [], slow * times, slow, OURS, OURS, REFERENCES).ratio_to_qcls == 3.0


def test_agreement_counts_winners_and_the_largest_differences() -> None:
    answers = [Answer(label="a", joint=(-1.25, None)), Answer(label=None, joint=(None, -0.2))]
    found = method_record("qcls", [], MS, MS, answers, OURS, REFERENCES)
    assert (found.as_scoring, found.as_joint, found.n_answers, found.n_without_answer) == (1.0, 0.0, 1, 1)
    assert found.largest_log_probability_difference == 0.25
    assert found.n_log_probabilities == 2
    nobody = method_record("qcls", [], MS, MS, [Answer(label=None)] * 2, OURS, REFERENCES)
    assert (nobody.as_scoring, nobody.as_joint, nobody.n_answers, nobody.n_without_answer) == (None, None, 0, 2)
    assert nobody.largest_log_probability_difference is None
