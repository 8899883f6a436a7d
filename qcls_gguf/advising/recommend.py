"""Which of the tried candidates to take, and why."""

from __future__ import annotations

from collections.abc import Sequence

from ..report.numbers import measured, percent
from ..statistics import wilson
from .records import CandidateRecord, Predicted

_MOST_QUERIES = 1_000_000


def pareto(candidates: Sequence[CandidateRecord]) -> set[str]:
    """The names of those that none beats: faster here and with no less agreement, or as fast and with more."""
    points = [
        (each.name, each.time_share, each.least_agreement)
        for each in candidates
        if each.time_share is not None and each.least_agreement is not None
    ]
    return {
        name
        for name, time, agreement in points
        if not any(
            other_time <= time and other >= agreement and (other_time < time or other > agreement)
            for _, other_time, other in points
        )
    }


def recommendation(
    candidates: Sequence[CandidateRecord], limit: float, *, by_target: bool
) -> tuple[CandidateRecord | None, str]:
    """The fastest candidate that meets the limit in every prompt, and why; none where the original is the fastest.

    candidates: the original first. by_target: the middle of the predicted range counts where all have one, else the
    median that was measured here, by the original's in the same turns.
    """
    original, *others = candidates
    timed = [each for each in (original, *others) if each.latency is not None]
    predicted = by_target and all(each.predicted for each in timed)

    def share(each: CandidateRecord) -> float:
        if predicted and each.predicted and original.predicted:
            return _middle(each.predicted) / _middle(original.predicted)
        return float("inf") if each.time_share is None else each.time_share

    meeting = [each for each in others if each.meets_limit and each.latency is not None]
    best = min(meeting, key=share, default=None)
    where = "on the target, predicted" if predicted else "here"
    if best is None:
        return None, f"keep the original: no candidate keeps {percent(limit)} of the answers in every prompt"
    if share(best) >= 1:
        return None, f"keep the original: no candidate that keeps {percent(limit)} of the answers is faster {where}"
    worst = min(best.prompts.items(), key=lambda pair: pair[1].agreement or 0)
    low = min(each.agreement_ci[0] for each in best.prompts.values() if each.agreement_ci)
    sure = f"every prompt's 95 % interval lies above the limit, from {percent(low)}"
    if not best.is_proven:
        n = n_queries_to_prove(worst[1].agreement or 0, limit)
        remedy = (
            f"at this agreement {n} queries would prove it"
            if n
            else "its agreement is too near the limit to be proven above it"
        )
        sure = f"not yet proven: the lowest 95 % interval begins at {percent(low)}; {remedy}"
    return best, (
        f"{best.name} is the fastest that keeps {percent(limit)} of the answers in every prompt: "
        f"{_times(best, original, where if predicted else None)} ({1 / share(best):.1f} × as long), "
        f"{measured(best.n_tokens)} tokens instead of "
        f"{measured(original.n_tokens)}; least agreement {percent(worst[1].agreement)} ({worst[0]}); {sure}"
    )


def _times(best: CandidateRecord, original: CandidateRecord, target: str | None) -> str:
    """What a request takes; target: where it is predicted, None: as it was measured."""
    if target and best.predicted and original.predicted:
        there = measured(_middle(original.predicted))
        return f"{measured(_middle(best.predicted))} ms a request {target}, the original {there} ms"
    assert best.latency is not None
    assert best.original_latency is not None
    beside = measured(best.original_latency.p50_ms)
    return f"{measured(best.latency.p50_ms)} ms a request here, the original in turns with it {beside} ms"


def n_queries_to_prove(agreement: float, limit: float) -> int | None:
    """How many queries with such an agreement have a 95 % interval above the limit; None for more than a million."""
    n = 10
    while n <= _MOST_QUERIES:
        interval = wilson(round(agreement * n), n)
        if interval and interval[0] >= limit:
            return n
        n += max(1, n // 20)
    return None


def _middle(predicted: Predicted) -> float:
    return (predicted.low_ms + predicted.high_ms) / 2
