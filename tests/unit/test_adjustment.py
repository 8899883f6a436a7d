"""Calibrated probabilities: worked by hand, against the plain formula, and what must hold for any scores."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qcls_gguf.score.adjustment import Adjustment, Adjustments, adjusted_scores, log_prior

FloatArray = npt.NDArray[np.float64]
number = st.floats(-30, 30)


def logs(*p: float) -> FloatArray:
    return np.asarray(np.log(p), np.float64)


def calibrated(score: FloatArray, **adjustment: Any) -> list[float]:
    return [float(p) for p in np.exp(adjusted_scores(score, Adjustment(**adjustment)))]


def test_prior_by_hand() -> None:
    """The mean of (0.9, 0.1) and (0.7, 0.3) is (0.8, 0.2), less which 0.8 : 0.2 is even and 0.5 : 0.5 is 1 : 4."""
    prior = log_prior(np.stack([logs(0.9, 0.1), logs(0.7, 0.3)]))
    assert np.exp(prior).tolist() == pytest.approx([0.8, 0.2])
    assert calibrated(logs(0.8, 0.2), prior=prior) == pytest.approx([0.5, 0.5])
    assert calibrated(logs(0.5, 0.5), prior=prior) == pytest.approx([0.2, 0.8])
    # logits and joint log-probabilities are made probabilities before their mean is taken
    assert np.exp(log_prior(np.array([[math.log(9) + 40, 40.0], [-7.0, -7.0]]))).tolist() == pytest.approx([0.7, 0.3])


@st.composite
def prompts(draw: st.DrawFn) -> tuple[list[Adjustment], list[int], npt.NDArray[np.float32]]:
    """Adjustments of several prompts, not all neutral, where their labels lie, and scores of several queries."""
    sizes = draw(st.lists(st.integers(2, 5), min_size=1, max_size=4))
    found = []
    for n in sizes:
        numbers = st.lists(number, min_size=n, max_size=n).map(np.array)
        found.append(
            Adjustment(
                temperature=draw(st.sampled_from([1.0, 0.3, 4.0])),
                prior=draw(st.none() | numbers),
                bias=draw(st.none() | numbers),
            )
        )
    if all(adjustment.is_neutral for adjustment in found):
        found[0] = Adjustment(temperature=2.0)
    first = [0, *np.cumsum(sizes).tolist()]
    n_queries = draw(st.integers(1, 3))
    flat = draw(st.lists(number, min_size=n_queries * first[-1], max_size=n_queries * first[-1]))
    return found, first, np.array(flat, np.float32).reshape(n_queries, -1)


@given(prompts())
def test_all_prompts_at_once_are_each_by_the_formula(
    case: tuple[list[Adjustment], list[int], npt.NDArray[np.float32]],
) -> None:
    """And the probabilities of a prompt without an adjustment stay the same bits."""
    found, first, score = case
    raw = np.random.default_rng(0).random(score.shape, np.float32)
    probability = raw.copy()
    Adjustments(found, first, [not each.is_neutral for each in found]).apply(score, probability)
    for adjustment, low, high in zip(found, first[:-1], first[1:], strict=True):
        here = probability[:, low:high]
        if adjustment.is_neutral:
            assert here.tobytes() == raw[:, low:high].tobytes()
            continue
        for row, given_scores in zip(here, score[:, low:high].astype(np.float64), strict=True):
            own = given_scores - (0 if adjustment.prior is None else adjustment.prior)
            power = np.exp(own / adjustment.temperature + (0 if adjustment.bias is None else adjustment.bias))
            np.testing.assert_allclose(row, power / power.sum(), rtol=0, atol=1e-4)
            assert row.sum() == pytest.approx(1, abs=1e-5)
