"""Heads in closed form against slow mirrors, and the choices between them."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from qcls_gguf.learning import fit
from qcls_gguf.learning.fit import N_FOLDS, Candidate, Ridge, choose, fit_scores, folds, held_out
from qcls_gguf.score.rows import head_scores, unit_states
from qcls_gguf.statistics import log_softmax

N_EMBD = 24


def made(
    n: int, n_labels: int = 3, *, signal: float = 1.0, seed: int = 0
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.intp], npt.NDArray[Any]]:
    """(states, labels, the labels' own scores) of rows whose states tell the label as well as `signal` says."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, n_labels, n).astype(np.intp)
    label[:n_labels] = np.arange(n_labels)
    middle = rng.normal(size=(n_labels, N_EMBD)) * 3
    states = unit_states((signal * middle[label] + rng.normal(size=(n, N_EMBD)) * 3 + 5).astype(np.float32))
    scores = log_softmax(rng.normal(size=(n, n_labels)) + np.eye(n_labels)[label])
    return states, label, scores


@pytest.mark.parametrize("n", [9, 60])
@pytest.mark.parametrize("penalty", [0.01, 3.0])
def test_ridge_is_the_solution_of_its_equations(n: int, penalty: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """More numbers than rows, and fewer, in parts of 7: weights by the normal equations; a row left out by fitting the
    others."""
    monkeypatch.setattr(fit, "_MOST_NUMBERS", 7 * max(N_EMBD, 3 * len(fit.PENALTIES)))
    states, label, _ = made(n)
    target = np.eye(3)[label]
    x = states.astype(np.float64)
    spread = x.std(axis=0)
    scale = np.maximum(spread, 1e-3 * spread.mean()) * math.sqrt(N_EMBD)
    x = (x - x.mean(axis=0)) / scale

    def slow(rows: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
        design = np.column_stack([np.ones(rows.sum()), x[rows]])
        held = np.diag([0.0] + [penalty] * N_EMBD)
        return np.asarray(np.linalg.solve(design.T @ design + held, design.T @ target[rows]))

    every = np.arange(n)
    ridge = Ridge(np.repeat(states, 2, axis=0), 2 * every, target)
    weight, bias = ridge.weights(penalty)
    solved = slow(np.ones(n, np.bool_))
    np.testing.assert_allclose(states @ weight + bias, solved[0] + x @ solved[1:], atol=1e-5)
    for row, found in enumerate(np.concatenate([each for _, (each,) in ridge.left_out([penalty])])):
        solved = slow(np.arange(n) != row)
        np.testing.assert_allclose(found, solved[0] + x[row] @ solved[1:], atol=1e-6)


def candidate(states: npt.NDArray[Any], scores: npt.NDArray[Any] | None = None) -> Candidate:
    return Candidate(depth=2, states=states, scores=scores, index=np.arange(len(states)))


def test_scores_are_fitted_to_the_least_penalised_loss() -> None:
    _, label, scores = made(80)
    scale, bias = fit_scores(3 * scores + np.array([0.0, 2.0, -1.0]), label)

    def loss(scale: float, bias: npt.NDArray[Any]) -> float:
        log_p = log_softmax(scale * (3 * scores + np.array([0.0, 2.0, -1.0])) + bias)
        return float(-log_p[np.arange(80), label].sum() + ((scale - 1) ** 2 + (bias**2).sum()) / 2)

    least = loss(scale, bias)
    for change in np.random.default_rng(0).normal(size=(20, 4)) * 0.05:
        assert loss(scale + change[0], bias + change[1:]) > least
    assert 0 < scale < 1


@pytest.mark.parametrize("beside", [False, True])
def test_a_head_answers_as_its_fit(beside: bool) -> None:
    """Losses without a row are worse than the head's own, and better than those of the labels' frequencies."""
    states, label, scores = made(120)
    found = candidate(states, scores if beside else None).fit(label, 3)
    assert found.head.reads_labels == beside
    own = -head_scores(found.head, states, scores.astype(np.float32))[np.arange(120), label]
    frequencies = np.bincount(label) / 120
    assert own.mean() < found.losses.mean() < -(frequencies * np.log(frequencies)).sum() - 0.2


def test_the_cheapest_of_equally_good_candidates_is_chosen() -> None:
    states, label, _ = made(150)
    noise = made(150, signal=0, seed=1)[0]
    candidates = [replace(candidate(each), depth=depth) for depth, each in ((1, noise), (2, states), (3, states))]
    assert choose(candidates, label, 3).head.depth == 2
    assert choose(candidates[::-1], label, 3).head.depth == 3


def test_rows_are_held_out() -> None:
    """What tells nothing is not found to tell something; what tells, does. Of ten seeds the mean."""
    right: dict[float, list[float]] = {0.0: [], 1.0: []}
    for seed in range(10):
        label = made(60, seed=seed)[1]
        for signal, found in right.items():
            states = made(60, signal=signal, seed=seed if signal else 100 + seed)[0]
            log_p = held_out([candidate(states)], label, 3)
            found.append(float((log_p.argmax(axis=1) == label).mean()))
    assert np.mean(right[0.0]) < 0.45
    assert np.mean(right[1.0]) > 0.7


def test_folds_have_every_row_once_and_every_label() -> None:
    label = np.repeat([0, 1, 2], [50, 10, 5])
    found = folds(label)
    assert sorted(np.concatenate(found).tolist()) == list(range(65))
    for fold in found:
        assert np.bincount(label[fold], minlength=3).tolist() == [10, 2, 1]
    assert len(found) == N_FOLDS


def test_labels_without_rows_keep_their_scores() -> None:
    """The odds between two labels without rows stay those of the scores, scaled."""
    states, label, scores = made(120, 5)
    rows = label < 3
    learnt = candidate(states[rows], scores[rows])
    head = learnt.fit(label[rows], 5, np.array([3, 4])).head
    answers = head_scores(head, states, scores.astype(np.float32))
    odds = answers[:, 3] - answers[:, 4]
    np.testing.assert_allclose(odds, head.scale * (scores[:, 3] - scores[:, 4]), atol=1e-4)
    assert (answers[rows].argmax(axis=1) == label[rows]).mean() > (scores[rows].argmax(axis=1) == label[rows]).mean()
    p = np.exp(held_out([learnt], label[rows], 5))
    assert p.shape == (rows.sum(), 5)
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-5)


def test_large_states_keep_their_direction() -> None:
    """Also where a sum of squares is more than float32 has."""
    states = np.random.default_rng(0).normal(size=(2, N_EMBD)).astype(np.float32)
    np.testing.assert_allclose(unit_states(states * np.float32(1e25)), unit_states(states), rtol=1e-6)
