"""Fits to scores whose true labels are drawn from known probabilities: what was put in is found, or refused."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from scipy.optimize import approx_fprime, minimize

from qcls_gguf.score.adjustment import log_softmax
from qcls_gguf.tuning.fit import cross_validate, fit, log_losses

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
    found = fit(score, accepted, with_bias=False)
    assert found.temperature == pytest.approx(temperature, rel=0.08)
    assert found.bias is None


def test_a_fit_is_the_minimum_of_its_definition() -> None:
    """No parameters have a lower penalised loss; searched without our gradient, on some rows of two labels."""
    score, accepted = drawn(120, 1.5, BIAS)
    accepted[::3, 0] = True

    def objective(x: FloatArray) -> float:
        scaled = score / np.exp(x[0]) + x[1:]
        log_p = scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))
        losses = [-np.log(np.exp(row)[right].sum()) for row, right in zip(log_p, accepted, strict=True)]
        return float(np.mean(losses) + (x**2).sum() / (2 * len(score)))

    found = fit(score, accepted, with_bias=True)
    assert found.bias is not None
    x = np.array([np.log(found.temperature), *found.bias])
    assert np.abs(approx_fprime(x, objective)).max() < 1e-4
    options = {"maxiter": 4000, "xatol": 1e-6, "fatol": 1e-9}
    assert objective(x) == pytest.approx(
        minimize(objective, 0 * x, method="Nelder-Mead", options=options).fun, abs=1e-6
    )


def test_a_label_that_never_occurs_has_a_finite_bias() -> None:
    score, accepted = drawn(200, 1.0, np.array([0.0, 0.0, -40.0]))
    found = fit(score, accepted, with_bias=True)
    assert found.bias is not None
    assert -10 < found.bias[2] < -0.5


def test_the_temperature_has_bounds() -> None:
    """And a few scores that are all right are not sharpened without end."""
    score = np.eye(3)[np.arange(60) % 3] * 100
    assert 0.5 < fit(score, score > 0, with_bias=False).temperature <= 1
    assert fit(score, score == 0, with_bias=False).temperature == pytest.approx(20)


@pytest.mark.parametrize("with_bias", [False, True])
def test_a_fit_that_helps_is_accepted(with_bias: bool) -> None:
    score, accepted = drawn(400, 2.0, BIAS)
    verdict = cross_validate(score, accepted, with_bias=with_bias)
    assert verdict.accepted
    assert verdict.log_loss.before - verdict.log_loss.after > verdict.log_loss.standard_error > 0
    assert verdict.ece.after < verdict.ece.before


@pytest.mark.parametrize("with_bias", [False, True])
def test_a_fit_to_scores_that_are_right_already_is_refused(with_bias: bool) -> None:
    """Of ten samples of calibrated rows none but a few improve by a standard error by chance."""
    accepted = []
    for seed in range(10):
        score, labels = drawn(200, 1.0, np.zeros(4), seed=seed)
        accepted.append(cross_validate(score, labels, with_bias=with_bias).accepted)
    assert sum(accepted) <= 2


def test_the_held_out_loss_is_that_of_fits_to_the_other_folds() -> None:
    score, accepted = drawn(100, 2.0, np.zeros(4))
    verdict = cross_validate(score, accepted, with_bias=False, n_folds=4, seed=3)
    losses = np.empty(100)
    for fold in np.array_split(np.random.default_rng(3).permutation(100), 4):
        others = np.setdiff1d(np.arange(100), fold)
        temperature = fit(score[others], accepted[others], with_bias=False).temperature
        losses[fold] = log_losses(log_softmax(score[fold] / temperature), accepted[fold])
    before = log_losses(log_softmax(score), accepted)
    assert verdict.log_loss.after == pytest.approx(losses.mean())
    assert verdict.log_loss.before == pytest.approx(before.mean())
    assert verdict.log_loss.standard_error == pytest.approx((before - losses).std(ddof=1) / 10)
    assert verdict.parameters.temperature == fit(score, accepted, with_bias=False).temperature
