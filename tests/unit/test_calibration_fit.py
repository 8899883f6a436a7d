"""Fits to scores whose true labels are drawn from known probabilities: what was put in is found, or refused.

And calibrated probabilities: worked by hand, against the plain formula, and what must hold for any scores.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qcls_gguf import PromptConfig
from qcls_gguf.config.fitted import Calibration, PromptCalibration
from qcls_gguf.score.adjustment import Adjustment, Adjustments, adjustments_of, log_prior
from qcls_gguf.statistics import log_softmax
from qcls_gguf.statistics.fitting import cross_validate, fit
from qcls_gguf.statistics.fitting import losses as log_losses

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
BIAS = np.array([0.8, -0.5, 0.2, -0.5])


def drawn(n: int, temperature: float, bias: FloatArray, *, seed: int = 0) -> tuple[FloatArray, BoolArray]:
    """Scores of n rows, and one accepted label each, drawn from softmax(score / temperature + bias)."""
    random = np.random.default_rng(seed)
    score = random.normal(0, 3, (n, len(bias)))
    p = np.exp(log_softmax(score / temperature + bias))
    label = (p.cumsum(axis=1) > random.random((n, 1))).argmax(axis=1)
    accepted = np.zeros((n, len(bias)), np.bool_)
    accepted[np.arange(n), label] = True
    return score, accepted


@pytest.mark.parametrize("temperature", [0.4, 2.5])
def test_a_known_temperature_is_found(temperature: float) -> None:
    score, accepted = drawn(6000, temperature, np.zeros(4))
    found = fit(score, accepted)
    assert found == pytest.approx(temperature, rel=0.08)


def test_a_fit_is_the_minimum_of_its_definition() -> None:
    """No temperature has a lower penalised loss, on some rows of two labels."""
    score, accepted = drawn(120, 1.5, BIAS)
    accepted[::3, 0] = True

    def objective(log_temperature: float) -> float:
        scaled = score / np.exp(log_temperature)
        log_p = scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))
        losses = [-np.log(np.exp(row)[right].sum()) for row, right in zip(log_p, accepted, strict=True)]
        return float(np.mean(losses) + log_temperature**2 / (2 * len(score)))

    found = float(np.log(fit(score, accepted)))
    losses = [objective(found + change) for change in (-0.02, 0, 0.02, *np.linspace(-2, 2, 21))]
    assert min(losses) == losses[1] < losses[0] - 1e-6
    assert losses[1] < losses[2] - 1e-6


def test_the_temperature_has_bounds() -> None:
    """And a few scores that are all right are not sharpened without end."""
    score = np.eye(3)[np.arange(60) % 3] * 100
    assert 0.5 < fit(score, score > 0) <= 1
    assert fit(score, score == 0) == pytest.approx(20)


def test_a_fit_that_helps_is_accepted() -> None:
    score, accepted = drawn(400, 2.0, BIAS)
    verdict = cross_validate(score, accepted)
    assert verdict.accepted
    assert verdict.log_loss_before - verdict.log_loss_after > verdict.standard_error > 0
    assert verdict.ece_after < verdict.ece_before


def test_a_fit_to_scores_that_are_right_already_is_refused() -> None:
    """Of ten samples of calibrated rows none but a few improve by a standard error by chance."""
    accepted = []
    for seed in range(10):
        score, labels = drawn(200, 1.0, np.zeros(4), seed=seed)
        accepted.append(cross_validate(score, labels).accepted)
    assert sum(accepted) <= 2


def test_the_held_out_loss_is_that_of_fits_to_the_other_folds() -> None:
    score, accepted = drawn(100, 2.0, np.zeros(4))
    verdict = cross_validate(score, accepted, n_folds=4, seed=3)
    losses = np.empty(100)
    for fold in np.array_split(np.random.default_rng(3).permutation(100), 4):
        others = np.setdiff1d(np.arange(100), fold)
        temperature = fit(score[others], accepted[others])
        losses[fold] = log_losses(log_softmax(score[fold] / temperature), accepted[fold])
    before = log_losses(log_softmax(score), accepted)
    assert verdict.log_loss_after == pytest.approx(losses.mean())
    assert verdict.log_loss_before == pytest.approx(before.mean())
    assert verdict.standard_error == pytest.approx((before - losses).std(ddof=1) / 10)
    assert verdict.temperature == fit(score, accepted)


number = st.floats(-30, 30)


def logs(*p: float) -> FloatArray:
    return np.asarray(np.log(p), np.float64)


def calibrated(score: FloatArray, **adjustment: Any) -> list[float]:
    """The probabilities of one prompt and one query."""
    probability = np.zeros((1, len(score)))
    Adjustments([Adjustment(**adjustment)], [0, len(score)]).apply(score[None], probability)
    return [float(p) for p in probability[0]]


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
    Adjustments(found, first).apply(score, probability)
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


def test_a_temperature_of_ones_own_stands_beside_fitted_biases() -> None:
    prompt = PromptConfig(name="a", prompt_template="{query}", labels=("x", "y"), temperature=2.0)
    fits = {"a": PromptCalibration(prompt_hash="", scoring="tree", bias={"x": 0.5, "y": -0.5})}
    calibration = Calibration(model_sha256="", prompts=fits)
    (found,) = adjustments_of([prompt], calibration, lambda query: {})
    assert found.temperature == 2
    assert found.bias is not None
    assert found.bias.tolist() == [0.5, -0.5]
