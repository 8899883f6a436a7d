"""Which candidate is recommended, and thresholds of a cascade, whose guarantee holds on unseen rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from qcls_gguf.advising import answers
from qcls_gguf.advising.answers import fit_threshold, n_rows_needed
from qcls_gguf.advising.comparison import recommendation
from qcls_gguf.advising.records import CandidateRecord, PromptAgreement, RequestTimes
from qcls_gguf.statistics import upper_bound, wilson


def drawn(n: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Answers whose chance to differ falls with their probability: below 0.9 they differ far too often."""
    probability = 1 - generator.random(n) ** 2
    differs = generator.random(n) < np.where(probability < 0.9, 0.3, 0.002)
    return probability, differs


def test_a_threshold_divides_sure_answers_from_others() -> None:
    probability, differs = drawn(6000, np.random.default_rng(1))
    threshold = fit_threshold(probability, differs, 0.99)
    assert threshold is not None
    assert 0.8 < threshold < 0.93
    n_other = ((probability[3000:] >= threshold) & differs[3000:]).sum()
    assert upper_bound(int(n_other), 3000, 0.95) <= 0.01


def test_the_guarantee_is_broken_no_more_often_than_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The true agreement of each threshold is computed from a large sample; four standard errors are allowed for."""
    monkeypatch.setattr(answers, "CONFIDENCE", 0.9)
    sample_p, sample_d = drawn(100_000, np.random.default_rng(2))
    n_runs, broken = 200, 0
    generator = np.random.default_rng(3)
    for _ in range(n_runs):
        threshold = fit_threshold(*drawn(1200, generator), 0.98)
        if threshold is not None:
            broken += (sample_d & (sample_p >= threshold)).mean() > 0.02
    assert broken / n_runs <= 0.1 + 4 * math.sqrt(0.1 * 0.9 / n_runs)


def test_without_enough_rows_or_agreement_there_is_none() -> None:
    n = n_rows_needed(0.99)
    assert n == 2 * 299
    sure = np.full(n, 0.99)
    same, other = np.zeros(n, np.bool_), np.ones(n, np.bool_)
    assert fit_threshold(sure, same, 0.99) == 0.99
    assert fit_threshold(sure[2:], same[2:], 0.99) is None
    assert fit_threshold(sure, other, 0.99) is None
    assert fit_threshold(np.ones(n), same, 0.99) == 1.0


def candidate(name: str, ms: float, n_agree: int, **changes: Any) -> CandidateRecord:
    agreement = n_agree / 1000
    prompt = PromptAgreement(
        n_agree=n_agree, agreement=agreement, agreement_ci=wilson(n_agree, 1000) or (0, 1), n_labelled=0
    )
    values: dict[str, Any] = {
        "name": name, "why": "", "note": None, "model": None, "n_tokens": ms, "time_share": ms / 20,
        "times": RequestTimes(mean_ms=ms, p50_ms=ms, p99_ms=ms), "prompts": {"colour": prompt},
        "least_agreement": agreement, "meets_limit": agreement >= 0.98, "is_proven": prompt.agreement_ci[0] >= 0.98,
        "changed": (), "yaml": None,
    }  # fmt: skip
    return CandidateRecord(**{**values, **changes})


PRESENT = candidate("present", 20.0, 1000)


def test_the_fastest_that_keeps_the_limit_is_recommended() -> None:
    bad, good, best = candidate("bad", 1.0, 900), candidate("good", 5.0, 985), candidate("best", 9.0, 995)
    found, reason = recommendation([PRESENT, bad, best, good], 0.98)
    assert found is good
    assert "0.25 of the present time and feeds 5.0 tokens instead of 20.0" in reason
    assert "not yet proven" in reason
    found, reason = recommendation([PRESENT, best], 0.98)
    assert found is best
    assert "every prompt's interval lies above the limit" in reason


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (candidate("bad", 1.0, 900), "no candidate keeps 98.0% of the answers"),
        (candidate("slow", 21.0, 1000), "no candidate that keeps 98.0% of the answers is faster"),
    ],
)
def test_the_present_configuration_stays_where_nothing_is_faster_or_good_enough(
    other: CandidateRecord, words: str
) -> None:
    found, reason = recommendation([PRESENT, other], 0.98)
    assert found is None
    assert words in reason
