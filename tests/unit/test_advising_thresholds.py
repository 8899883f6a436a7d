"""Thresholds of a cascade: their guarantee holds on queries that no fit saw."""

from __future__ import annotations

import math

import numpy as np
import pytest

from qcls_gguf.advising.thresholds import fit_threshold, n_needed
from qcls_gguf.statistics import upper_bound


def binomial(k: int, n: int, p: float) -> float:
    """The chance of at most k of n."""
    return sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1))


@pytest.mark.parametrize(("k", "n"), [(0, 300), (3, 300), (17, 100), (1, 2)])
def test_the_bound_is_where_so_few_are_unlikely(k: int, n: int) -> None:
    assert binomial(k, n, upper_bound(k, n, 0.95)) == pytest.approx(0.05, abs=1e-6)
    assert upper_bound(n, n, 0.95) == 1.0


def test_how_many_queries_a_guarantee_needs() -> None:
    n = n_needed(0.99, 0.95)
    assert n == 299
    assert upper_bound(0, n, 0.95) <= 0.01 < upper_bound(0, n - 1, 0.95)


def drawn(n: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Answers whose chance to differ falls with their probability: below 0.9 they differ far too often."""
    probability = 1 - generator.random(n) ** 2
    differs = generator.random(n) < np.where(probability < 0.9, 0.3, 0.002)
    return probability, differs


def test_a_threshold_parts_sure_answers_from_others() -> None:
    probability, differs = drawn(6000, np.random.default_rng(1))
    found = fit_threshold(probability, differs, 3000, 0.99, 0.95)
    assert found.threshold is not None
    assert 0.8 < found.threshold < 0.93
    assert found.least_agreement >= 0.99
    assert found.n_answered == (probability[3000:] >= found.threshold).sum()
    assert found.n_other == ((probability[3000:] >= found.threshold) & differs[3000:]).sum()


def test_the_guarantee_is_broken_no_more_often_than_stated() -> None:
    """The true agreement of each threshold is computed from a large sample; four standard errors are allowed for."""
    sample_p, sample_d = drawn(100_000, np.random.default_rng(2))
    n_runs, broken = 200, 0
    generator = np.random.default_rng(3)
    for _ in range(n_runs):
        found = fit_threshold(*drawn(1200, generator), 600, 0.98, 0.9)
        if found.threshold is not None:
            broken += (sample_d & (sample_p >= found.threshold)).mean() > 0.02
    assert broken / n_runs <= 0.1 + 4 * math.sqrt(0.1 * 0.9 / n_runs)


def test_without_enough_queries_or_agreement_there_is_none() -> None:
    probability = np.full(400, 0.99)
    same, other = np.zeros(400, np.bool_), np.ones(400, np.bool_)
    assert fit_threshold(probability, same, 200, 0.99, 0.95).threshold is None  # 200 are too few
    assert fit_threshold(probability, same, 100, 0.99, 0.95).threshold == 0.99  # 300 are enough
    assert fit_threshold(probability, other, 100, 0.99, 0.95).threshold is None
    assert fit_threshold(np.array([1.0] * 400), same, 100, 0.99, 0.95).threshold == 1.0
