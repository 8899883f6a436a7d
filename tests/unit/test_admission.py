"""Who is admitted: by requests, by tokens, and by how long those who are in the service will take."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import accumulate
from random import Random

import pytest

pytest.importorskip("pydantic_core")

from qcls_gguf.service.admission import Admission
from qcls_gguf.service.refusal import RefusedError
from qcls_gguf.service.settings import LongestWait, RequestLimits


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
    assert (admission.n_requests, admission.n_tokens, admission.wait_ms()) == (0, 0, 0)
    return found


@pytest.mark.parametrize("ms", [10.0, 400.0])
def test_a_bound_of_two_requests_time_admits_two_before_the_last(ms: float) -> None:
    for wait in (LongestWait(2 * ms), LongestWait(2, is_multiple=True)):
        limits = RequestLimits(longest_wait=wait)
        assert reasons(limits, n_tokens=30, ms=ms, n=5) == ["", "", "", "wait", "wait"]


def test_without_a_bound_requests_and_tokens_count() -> None:
    assert reasons(RequestLimits(), n_tokens=30, ms=100, n=66) == [""] * 64 + ["requests"] * 2


def test_a_request_alone_is_admitted() -> None:
    assert reasons(RequestLimits(waiting_tokens=1, longest_wait=LongestWait(0)), n_tokens=30, ms=100, n=2) == [
        "",
        "wait",
    ]


def test_what_is_too_much_is_told_with_what_would_come() -> None:
    admission = Admission(RequestLimits(waiting_tokens=100))
    message = "about 70 tokens are in the service, this request has 31, and 100 are admitted: ask again later"
    with (
        admission.admitted(70, 70),
        pytest.raises(RefusedError, match=f"^{message}$"),
        admission.admitted(31, 31),
    ):
        pass


def test_a_long_request_lets_others_in_between() -> None:
    admission = Admission(RequestLimits(longest_wait=LongestWait(100), waiting_tokens=100_000))
    admission.learn(10, 10.0)
    with admission.admitted(5000, 40), admission.admitted(10, 10):
        assert admission.wait_ms() == 50


def test_long_and_short_queries_that_share_a_turn_are_averaged_by_their_tokens() -> None:
    admission = Admission(RequestLimits(longest_wait=LongestWait(100)))
    for _ in range(200):
        for n_tokens in (20, 528):
            admission.learn(n_tokens, 30.0, 2)
    with admission.admitted(548, 548):
        assert 0.9 * 30 < admission.wait_ms() < 1.1 * 30


def test_what_is_computed_counts_by_what_is_left_of_it() -> None:
    admission = Admission(RequestLimits(longest_wait=LongestWait(1.5, is_multiple=True)))
    admission.learn(10, 10.0)
    with admission.admitted(10, 10):
        assert [admission.wait_ms(turn_ms) for turn_ms in (0, 4, 10, 25)] == [10, 6, 0, 15]
        with admission.admitted(10, 10, 0):
            assert admission.wait_ms(4) == 16
            with (
                pytest.raises(RefusedError, match=r"about 16\.0 ms, and 15\.0 ms are allowed"),
                admission.admitted(10, 10, 4),
            ):
                pass
            with admission.admitted(10, 10, 6):  # nobody takes longer than 1.5 + 1 times what a request takes
                pass
        with pytest.raises(RefusedError), admission.admitted(10, 10, 26):  # nobody knows when a late one will be done
            pass


def simulated(arrivals: list[float], times: list[float], bound: LongestWait) -> tuple[list[float], float]:
    """How long each admitted request takes, first come, first served; and the share of the time that is worked."""
    admission = Admission(RequestLimits(longest_wait=bound))
    admission.learn(10, 1.0)
    queue: list[tuple[float, float, float, ExitStack]] = []  # came, begins, ends
    took, worked, free = [], 0.0, 0.0
    for now, ms in zip(arrivals, times, strict=True):
        while queue and queue[0][2] <= now:
            came, began, ends, place = queue.pop(0)
            place.close()
            admission.learn(10, ends - began)
            took.append(ends - came)
        turn_ms = now - queue[0][1] if queue else 0.0
        place = ExitStack()
        try:
            place.enter_context(admission.admitted(10, 10, turn_ms))
        except RefusedError:
            continue
        began = max(now, free)
        free = began + ms
        worked += ms
        queue.append((now, began, free, place))
    return took, worked / arrivals[-1]


@pytest.mark.parametrize(("times", "most"), [(1.0, 2.0), (2.0, 3.0)])
def test_beyond_the_capacity_nobody_admitted_waits_longer_than_is_allowed(times: float, most: float) -> None:
    """Time is in requests: arrivals at random, 1.5 in the time of one."""
    random = Random(0)
    arrivals = list(accumulate(random.expovariate(1.5) for _ in range(20_000)))
    bound = LongestWait(times, is_multiple=True)
    took, worked = simulated(arrivals, [1.0] * len(arrivals), bound)
    assert max(took) <= most + 1e-9
    assert worked > 0.85
    uneven = [random.uniform(0.8, 1.2) for _ in arrivals]
    took, worked = simulated(arrivals, uneven, bound)
    assert sorted(took)[len(took) * 99 // 100] < most + 0.5
    assert worked > 0.8
