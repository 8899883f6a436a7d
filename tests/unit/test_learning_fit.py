"""Heads against slow mirrors, and the choices between them."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.linear_model import LogisticRegression

from qcls_gguf.learning.fit import Candidate, cheapest, held_out
from qcls_gguf.score.rows import head_scores, unit_states
from qcls_gguf.statistics import log_softmax
from qcls_gguf.statistics import logistic as regressions
from qcls_gguf.statistics.logistic import N_FOLDS, PENALTIES, cross_fit, folds, logistic, word_statistics

N_EMBD = 24


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches end when little is left to gain; here, when next to nothing is."""
    monkeypatch.setattr(regressions, "_LEAST_GAIN", 1e-9)


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


def names(n: int) -> list[str]:
    return [str(row) for row in range(n)]


def candidate(states: npt.NDArray[Any], scores: npt.NDArray[Any] | None = None, depth: int = 2) -> Candidate:
    return Candidate(depth=depth, states=states, scores=scores, index=np.arange(len(states)))


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("penalty", [0.01, 1.0])
@pytest.mark.parametrize("n", [15, 90])
def test_regressions_are_those_of_scikit_learn(n: int, penalty: float) -> None:
    """More numbers than rows, and fewer; of all rows, and of all but a fold's, whose rows are then held out."""
    states, label, _ = made(n)
    x, fold = states - states.mean(axis=0), folds(label, names(n))
    found = cross_fit(x, np.eye(3)[label], fold, [penalty])

    def slow(rows: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
        model = LogisticRegression(C=1 / penalty, tol=1e-8, max_iter=5000).fit(x[rows], label[rows])
        return np.asarray(model.predict_log_proba(x))

    np.testing.assert_allclose(log_softmax(x @ found.weight + found.bias), slow(np.ones(n, np.bool_)), atol=0.03)
    for k in range(N_FOLDS if n > 50 else 0):
        np.testing.assert_allclose(found.log_p[fold == k], slow(fold != k)[fold == k], atol=0.03)


@pytest.mark.usefixtures("exact")
def test_shares_of_labels_are_learnt_as_weighed_rows() -> None:
    """A row with shares 0.7 and 0.3 is one row of each label, weighed so."""
    states, label, _ = made(40)
    share = np.full((40, 1), 0.7, np.float32)
    first, second = (np.eye(3, dtype=np.float32)[(label + shift) % 3] for shift in (0, 1))
    soft = logistic(states, share * first + (1 - share) * second, np.ones_like(share), 0.1)
    twice = np.concatenate([states, states])
    weighed = logistic(twice, np.concatenate([first, second]), np.concatenate([share, 1 - share]), 0.1)
    np.testing.assert_allclose(soft, weighed, atol=0.03)


@pytest.mark.parametrize("beside", [False, True])
def test_a_head_answers_as_its_fit(beside: bool) -> None:
    """Losses without a row's fold are worse than the head's own, and better than those of the labels' frequencies."""
    states, label, scores = made(120)
    fold = folds(label, names(120))
    found, head = candidate(states, scores if beside else None).fit(np.eye(3)[label], fold)
    assert head.reads_labels == beside
    assert found.penalty in PENALTIES
    own = -head_scores(head, states, scores.astype(np.float32))[np.arange(120), label]
    frequencies = np.bincount(label) / 120
    assert own.mean() < found.losses.mean() < -(frequencies * np.log(frequencies)).sum() - 0.2


def test_the_cheapest_of_equally_good_candidates_is_chosen() -> None:
    states, label, _ = made(150)
    noise, fold = made(150, signal=0, seed=1)[0], folds(label, names(150))
    losses = [candidate(these).fit(np.eye(3)[label], fold)[0].losses for these in (noise, states, states)]
    assert cheapest(losses) == 1
    assert cheapest(losses[::-1]) == 0


def test_rows_are_held_out() -> None:
    """What tells nothing is not found to tell something, also by the best of many; what tells, does. Of ten seeds."""
    right: dict[float, list[float]] = {0.0: [], 1.0: []}
    for seed in range(10):
        label = made(60, seed=seed)[1]
        fold = folds(label, names(60), seed)
        for signal, shares in right.items():
            several = [made(60, signal=signal, seed=seed if signal else 100 * part + seed)[0] for part in range(1, 6)]
            fits = [candidate(states).fit(np.eye(3)[label], fold, [0.1])[0] for states in several]
            shares.append(float((held_out(fits, fold).argmax(axis=1) == label).mean()))
    assert np.mean(right[0.0]) < 0.4
    assert np.mean(right[1.0]) > 0.7


def test_folds_have_every_label_and_rows_of_one_query_together() -> None:
    label = np.repeat([0, 1, 2], [50, 10, 5])
    fold = folds(label, names(65))
    for k in range(N_FOLDS):
        assert np.bincount(label[fold == k], minlength=3).tolist() == [10, 2, 1]
    fold = folds(label, [str(row % 13) for row in range(65)])
    assert all(len(set(fold[row::13].tolist())) == 1 for row in range(13))


def test_labels_without_rows_keep_their_scores() -> None:
    """The odds between two labels without rows stay those of the scores."""
    states, label, scores = made(120, 5)
    rows = np.flatnonzero(label < 3)
    found, head = Candidate(depth=2, states=states, scores=scores, index=rows).fit(
        np.eye(5)[label[rows]], folds(label[rows], names(len(rows)))
    )
    answers = head_scores(head, states, scores.astype(np.float32))
    np.testing.assert_allclose(answers[:, 3] - answers[:, 4], scores[:, 3] - scores[:, 4], atol=1e-4)
    assert (answers[rows].argmax(axis=1) == label[rows]).mean() > (scores[rows].argmax(axis=1) == label[rows]).mean()
    np.testing.assert_allclose(np.exp(found.log_p).sum(axis=1), 1, atol=1e-5)


def test_words_tell_what_words_tell() -> None:
    label = np.arange(60) % 2
    texts = [f"a {'red' if one else '蓝色的'} coat number {row}" for row, one in enumerate(label)]
    found = cross_fit(word_statistics(texts), np.eye(2)[label], folds(label, texts), [0.1])
    assert (found.log_p.argmax(axis=1) == label).all()
    assert word_statistics(["", "…"]).shape == word_statistics(texts[:2]).shape


def test_large_states_keep_their_direction() -> None:
    """Also where a sum of squares is more than float32 has."""
    states = np.random.default_rng(0).normal(size=(2, N_EMBD)).astype(np.float32)
    np.testing.assert_allclose(unit_states(states * np.float32(1e25)), unit_states(states), rtol=1e-6)
