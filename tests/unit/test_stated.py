"""What is stated holds as often as it is stated: over redraws of rows from populations whose truth is known."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import beta, binom

from qcls_gguf.statistics import FloatArray, binomial_cdf, upper_bound
from qcls_gguf.statistics.fitting import (
    error_thresholds,
    p_value_of_error,
    rows_needed,
)

N_REDRAWS = 1000
TARGET = 0.05
RANDOM = np.random.default_rng
POPULATIONS: dict[str, Callable[[FloatArray], FloatArray]] = {
    "calibrated": lambda c: 1 - c,
    "overconfident": lambda c: np.minimum(0.02 + 2 * (1 - c), 1),
    "just too many errors": lambda c: np.full(len(c), 0.0505),
    "errors among the surest": lambda c: np.where(c > 0.9, 0.12, np.where(c > 0.6, 0.01, 0.2)),
    "up and down": lambda c: 0.06 + 0.05 * np.sin(20 * c),
    "always wrong": lambda c: np.ones(len(c)),
}
"""The error of an answer by its probability."""


@pytest.mark.parametrize(
    ("n", "k", "p"), [(10, 0, 0.05), (100, 3, 0.05), (1000, 60, 0.05), (10, 9, 0.9), (5, 5, 0.5), (4, 1, 0.5)]
)
def test_the_distributions_are_scipys(n: int, k: int, p: float) -> None:
    assert binomial_cdf(k, n, p) == pytest.approx(binom.cdf(k, n, p), rel=1e-9)
    expected = 1.0 if k == n else beta.ppf(0.95, k + 1, n - k)
    assert upper_bound(k, n, 0.95) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("name", POPULATIONS)
def test_the_error_stays_below_its_target_in_as_many_redraws_as_stated(name: str, ties: bool) -> None:
    """2,000 queries, so that the error above a threshold is known; a claim may be wrong in 5 % of the redraws."""
    random = RANDOM(7)
    c = np.sort(1 - random.beta(0.6, 3, 2000))[::-1]
    c = np.round(c, 1) if ties else c
    error = POPULATIONS[name](c)
    errors_above = np.cumsum(error) / np.arange(1, len(c) + 1)
    n_wrong = n_stated = 0
    for _ in range(N_REDRAWS):
        rows = random.integers(0, len(c), 400)
        wrong = random.random(400) < error[rows]
        accepted = [step for step in error_thresholds(c[rows], wrong, TARGET, 0.95) if step.accepted]
        if accepted:
            n_answered = int((c >= accepted[-1].threshold).sum())
            n_stated += 1
            n_wrong += errors_above[n_answered - 1] > TARGET
    assert n_wrong <= 0.05 * N_REDRAWS + 3 * np.sqrt(N_REDRAWS * 0.05 * 0.95)
    assert name != "calibrated" or n_stated > 0.3 * N_REDRAWS


def test_a_threshold_answers_the_rows_that_it_is_stated_of() -> None:
    sureness, wrong = np.repeat([0.9, 0.8, 0.7], 200), np.repeat([False, False, True], 200)
    steps = error_thresholds(sureness, wrong, TARGET, 0.95)
    best = [step for step in steps if step.accepted][-1]
    assert (best.n_answered, best.n_wrong) == (400, 0)
    assert 0.7 < best.threshold <= 0.8
    assert not steps[-1].accepted
    assert steps[-1].threshold == 0


def test_too_few_rows_are_told_how_many_would_do() -> None:
    """And with so many a threshold is found; errors that are too frequent need no number."""
    few = error_thresholds(np.linspace(0, 1, 40), np.zeros(40, bool), TARGET, 0.95)
    assert few == []
    needed = rows_needed(40, few, TARGET, 0.95)
    assert needed is not None
    assert error_thresholds(np.linspace(0, 1, needed), np.zeros(needed, bool), TARGET, 0.95)[0].accepted
    assert not error_thresholds(np.linspace(0, 1, needed - 1), np.zeros(needed - 1, bool), TARGET, 0.95)

    rows = np.arange(300)
    steps = error_thresholds(1 - rows / 300, rows % 25 == 0, TARGET, 0.95)  # 4 %
    assert not any(step.accepted for step in steps)
    more = rows_needed(300, steps, TARGET, 0.95)
    assert more is not None
    many = np.arange(2 * more)
    assert any(step.accepted for step in error_thresholds(1 - many / more / 2, many % 25 == 0, TARGET, 0.95))
    assert rows_needed(300, error_thresholds(1 - rows / 300, rows % 3 == 0, TARGET, 0.95), TARGET, 0.95) is None


def test_a_check_fails_true_claims_as_rarely_as_stated_and_finds_false_ones() -> None:
    random = RANDOM(6)
    at_target = [p_value_of_error(k, 200, TARGET) < 0.05 for k in random.binomial(200, TARGET, N_REDRAWS)]
    assert np.mean(at_target) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / N_REDRAWS)
    twice = [p_value_of_error(k, 200, TARGET) < 0.05 for k in random.binomial(200, 2 * TARGET, N_REDRAWS)]
    assert np.mean(twice) > 0.8
    assert p_value_of_error(0, 0, TARGET) == 1
