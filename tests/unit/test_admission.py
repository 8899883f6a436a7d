"""Who is admitted, and when the others may come again."""

from contextlib import ExitStack

import pytest

pytest.importorskip("pydantic_core")

from qcls_gguf.service.admission import Admission
from qcls_gguf.service.refusal import RefusedError


def test_more_requests_than_are_admitted_are_told_when_half_of_the_queries_will_be_done() -> None:
    admission = Admission(2)
    for ms in (8.0, 8.0):
        admission.learn(ms)
    for n_queries, retry_ms in ((10, 80), (1, 20), (10**9, 60_000)):  # neither at once nor hours later
        with ExitStack() as stack:
            for _ in range(2):
                stack.enter_context(admission.admitted(n_queries))
            with pytest.raises(RefusedError, match=r"^2 requests are in the service") as raised:
                stack.enter_context(admission.admitted(1))
        assert (raised.value.status, raised.value.reason) == (503, "requests")
        assert raised.value.retry_ms == pytest.approx(retry_ms)
    assert (admission.n_requests, admission.n_queries) == (0, 0)
