"""The numbers of an answer to a question."""

import pytest

from qcls_gguf.questions.distribution import Distribution


def test_confidences() -> None:
    assert Distribution([0.25] * 4).choice_confidence == 0
    assert Distribution([1, 0, 0]).choice_confidence == 1
    assert Distribution([0.1, 0.7, 0.2]).choice_confidence == pytest.approx((0.7 - 1 / 3) / (1 - 1 / 3))
    assert Distribution([1]).choice_confidence == Distribution([1]).score_confidence == 1
    assert Distribution([0, 1, 0]).score_confidence == 1
    assert Distribution([0.5, 0, 0.5]).score_confidence == 0
    assert Distribution([0.1, 0.8, 0.1]).score_confidence == pytest.approx(1 - 0.2 / (2 / 3))
    assert Distribution([0.1, 0.7, 0.2]).expected_level == pytest.approx(1.1)
