"""Settings of the service that are texts, and the numbers of an answer to a question."""

from __future__ import annotations

import pytest

pytest.importorskip("pydantic_core")

from qcls_gguf.errors import ConfigError
from qcls_gguf.questions.distribution import Distribution
from qcls_gguf.service.settings import LongestWait, check_origins, read_wait


def test_origins_are_compared_as_browsers_write_them() -> None:
    given = ["*", "HTTPS://Example.COM", "http://localhost:3000", "http://[::1]:3000", "chrome-extension://abc"]
    assert check_origins(given) == ("*", "https://example.com", *given[2:])


@pytest.mark.parametrize(
    "origin", ["null", "example.com", "http://", "http://example.com:", "http://example.com/", "http://a b"]
)
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(ConfigError, match=r"^`cors_origin` "):
        check_origins([origin])


@pytest.mark.parametrize(
    ("text", "wait"), [("50", LongestWait(50)), ("1.5x", LongestWait(1.5, is_multiple=True)), ("0", LongestWait(0))]
)
def test_waits_are_read(text: str, wait: LongestWait) -> None:
    assert read_wait(text) == wait


@pytest.mark.parametrize("text", ["", "x", "-1", "nan", "infx", "2 requests"])
def test_other_waits_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="`max_wait`"):
        read_wait(text)


def test_confidences() -> None:
    assert Distribution([0.25] * 4).choice_confidence == 0
    assert Distribution([1, 0, 0]).choice_confidence == 1
    assert Distribution([0.1, 0.7, 0.2]).choice_confidence == pytest.approx((0.7 - 1 / 3) / (1 - 1 / 3))
    assert Distribution([1]).choice_confidence == Distribution([1]).score_confidence == 1
    assert Distribution([0, 1, 0]).score_confidence == 1
    assert Distribution([0.5, 0, 0.5]).score_confidence == 0
    assert Distribution([0.1, 0.8, 0.1]).score_confidence == pytest.approx(1 - 0.2 / (2 / 3))
    assert Distribution([0.1, 0.7, 0.2]).expected_level == pytest.approx(1.1)
