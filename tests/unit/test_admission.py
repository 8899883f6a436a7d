"""Who is admitted: by requests, by tokens, and by how long those who are in the service will take."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

pytest.importorskip("pydantic_core")

from qcls_gguf.service.admission import Admission
from qcls_gguf.service.refusal import RefusedError
from qcls_gguf.service.settings import RequestLimits


def reasons(limits: RequestLimits, *, n_tokens: int, ms: float, n: int) -> list[str]:
    """Why each of n requests that come at once is refused; empty for those that are admitted."""
    admission = Admission(limits)
    admission.learn(n_tokens, ms)
    found = []
    with ExitStack() as stack:
        for _ in range(n):
            try:
                stack.enter_context(admission.admitted(n_tokens, n_tokens))
                found.append("")
            except RefusedError as refusal:
                found.append(refusal.reason if refusal.status == 503 and refusal.retry_ms else "not as it should be")
    assert (admission.n_requests, admission.n_tokens, admission.wait_ms) == (0, 0, 0)
    return found


@pytest.mark.parametrize("ms", [10.0, 400.0])
def test_a_bound_of_two_requests_time_admits_two_before_the_last(ms: float) -> None:
    limits = RequestLimits(wait_ms=2 * ms)
    assert reasons(limits, n_tokens=30, ms=ms, n=5) == ["", "", "", "wait", "wait"]


def test_without_a_bound_requests_and_tokens_count() -> None:
    assert reasons(RequestLimits(), n_tokens=30, ms=100, n=66) == [""] * 64 + ["requests"] * 2


def test_a_request_alone_is_admitted() -> None:
    assert reasons(RequestLimits(waiting_tokens=1, wait_ms=0), n_tokens=30, ms=100, n=2) == ["", "wait"]


def test_a_long_request_lets_others_in_between() -> None:
    admission = Admission(RequestLimits(wait_ms=100, waiting_tokens=100_000))
    admission.learn(10, 10.0)
    with admission.admitted(5000, 40), admission.admitted(10, 10):
        assert admission.wait_ms == 50
