"""Heads against slow mirrors, and the choices between them."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import beta, binom
from sklearn.linear_model import LogisticRegression

from qcls_gguf import PromptConfig
from qcls_gguf.config.fitted import Calibration, Head, PromptCalibration
from qcls_gguf.evaluation.evaluate import Truth
from qcls_gguf.learning.fit import Candidate, cheapest, held_out
from qcls_gguf.learning.learn import Task, learn_prompt
from qcls_gguf.learning.passes import common_texts
from qcls_gguf.score.adjustment import Adjustment, Adjustments, adjustments_of, log_prior
from qcls_gguf.score.rows import HeadScorer, RowLayout, unit_states
from qcls_gguf.statistics import Float32Array, FloatArray, binomial_cdf, log_softmax, upper_bound
from qcls_gguf.statistics import logistic as regressions
from qcls_gguf.statistics.fitting import Verdict, cross_validate, error_thresholds, fit, rows_needed, shares_of_labels
from qcls_gguf.statistics.fitting import losses as log_losses
from qcls_gguf.statistics.logistic import N_FOLDS, PENALTIES, cross_fit, cross_fit_words, folds, logistic, words_of

N_EMBD = 24


def head_scores(head: Head, state: Float32Array, by_labels: Float32Array) -> Float32Array:
    """(n, n_labels) log-probabilities by a head.

    state: (n, n_embd) at its depth, as the decode gives them; by_labels: (n, n_labels) the scores of the labels' texts.
    """
    scores = unit_states(state) @ head.weight + head.bias
    return log_softmax(scores + np.float32(head.scale) * by_labels if head.reads_labels else scores)


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


def candidate(states: npt.NDArray[Any], scores: npt.NDArray[Any] | None = None, rows: Any = None) -> Candidate:
    """To be fitted to these rows, or to all."""
    return Candidate(depth=2, states=states, scores=scores, index=np.arange(len(states)) if rows is None else rows)


def task_of(target: npt.NDArray[Any], p: npt.NDArray[Any], *, n_known: int | None = None, **more: Any) -> Task:
    """To learn of the first rows, by their labels' shares, the first or all of which are labelled; p: the answers of
    the prompt."""
    index, label = np.arange(len(target)), target.argmax(axis=1)
    prompt = PromptConfig(name="p", prompt_template="{query}", labels=tuple("abcd"[: target.shape[1]]))
    known = slice(n_known)
    truth = Truth(prompt=cast(Any, prompt), index=index[known], accepted=target[known] > 0, first=label[known])
    rows = {"texts": ["a coat"] * len(label), "index": index, "target": target, "fold": folds(label, names(len(label)))}
    of_prompt = {"truth": truth, "p": p, "place": 0, "columns": slice(0, len(prompt.labels)), "shares": None}
    return Task(prompt=prompt, **cast(Any, of_prompt | rows | more))


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("penalty", [0.01, 1.0])
@pytest.mark.parametrize(("n", "n_known"), [(15, 0), (90, 0), (90, 12)])
def test_regressions_are_those_of_scikit_learn(n: int, n_known: int, penalty: float) -> None:
    """More numbers than rows, and fewer; of all rows, and of all but a fold's, whose rows are then held out; some rows
    are in no fold."""
    states, label, _ = made(n)
    x, fold = states - states.mean(axis=0), folds(label[: n - n_known], names(n - n_known))
    found = cross_fit(x, np.eye(3)[label], np.append(fold, np.full(n_known, -1)), [penalty])

    def slow(rows: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
        model = LogisticRegression(C=1 / penalty, tol=1e-8, max_iter=5000).fit(x[rows], label[rows])
        return np.asarray(model.predict_log_proba(x))

    np.testing.assert_allclose(log_softmax(x @ found.weight + found.bias), slow(np.ones(n, np.bool_)), atol=0.03)
    for k in range(N_FOLDS if n > 50 else 0):
        held = np.flatnonzero(fold == k)
        np.testing.assert_allclose(found.log_p[held], slow(~np.isin(np.arange(n), held))[held], atol=0.03)
    assert len(found.log_p) == len(found.losses) == n - n_known


@pytest.mark.usefixtures("exact")
def test_shares_of_labels_are_learnt_as_weighed_rows() -> None:
    """A row with shares 0.7 and 0.3 is one row of each label, weighed so."""
    states, label, _ = made(40)
    states -= states.mean(axis=0)  # else an intercept can stand for a weight
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
    assert (cheapest(losses), cheapest(losses[::-1])) == (1, 0)
    common = replace(candidate(states), depth=3, text="Text: {query}")
    several, task = [candidate(states), common], task_of(np.eye(3)[label], np.full((150, 3), 1 / 3))
    for is_single, depth in ((True, 2), (False, 3)):  # a common text is cheaper than several, also on more layers
        assert learn_prompt(task, several, 150, is_single=is_single)[0].depth == depth


def test_rows_are_held_out() -> None:
    """What tells nothing is not found to tell something, also by the best of many; what tells, does. Of ten seeds."""
    right: dict[float, list[float]] = {0.0: [], 1.0: []}
    for seed in range(10):
        fold = folds(label := made(60, seed=seed)[1], names(60))
        for signal, shares in right.items():
            several = [made(60, signal=signal, seed=seed if signal else 100 * part + seed)[0] for part in range(1, 6)]
            fits = [candidate(states).fit(np.eye(3)[label], fold, [0.1])[0] for states in several]
            log_p = held_out([fit.losses for fit in fits], [fit.log_p for fit in fits].__getitem__, fold)
            shares.append(float((log_p.argmax(axis=1) == label).mean()))
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
    found, head = candidate(states, scores, rows).fit(np.eye(5)[label[rows]], folds(label[rows], names(len(rows))))
    answers = head_scores(head, states, scores.astype(np.float32))
    np.testing.assert_allclose(answers[:, 3] - answers[:, 4], scores[:, 3] - scores[:, 4], atol=1e-4)
    assert (answers[rows].argmax(axis=1) == label[rows]).mean() > (scores[rows].argmax(axis=1) == label[rows]).mean()
    np.testing.assert_allclose(np.exp(found.log_p).sum(axis=1), 1, atol=1e-5)


def test_words_tell_what_words_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    label = np.arange(60) % 2
    texts = [f"a {'red' if one else '蓝色的'} coat number {row}" for row, one in enumerate(label)]
    for most in (4000, 40):
        monkeypatch.setattr(regressions, "_MOST_TEXTS", most)
        found = cross_fit_words([*texts, "red"], np.eye(2)[[*label, 1]], np.append(folds(label, texts), -1))
        assert (found.log_p.argmax(axis=1) == label).all()
    for text, n, n_columns in (("", 1, 1), ("Été\n e\u0301té!", 21, 12), ("é" * 9000, 3072, 9)):
        assert (len(words_of(text)), len({*words_of(text)})) == (n, n_columns)
    assert words_of("red")[:4].tolist() == [6120, 4274, 5153, 6655]  # on which written heads rely


def test_words_count_beside_states_where_they_tell_more() -> None:
    """States tell one bit of the label and words the other; from words by chance nothing is learnt."""
    rng = np.random.default_rng(0)
    label, middle, noise = rng.integers(0, 4, 200), rng.normal(size=(2, N_EMBD)), rng.normal(size=(200, N_EMBD))
    states, edge = unit_states((2 * middle[label // 2] + noise).astype(np.float32)), np.arange(200)[:, None]
    for bit, helps in ((label % 2, True), (rng.integers(0, 2, 200), False)):
        texts = [f"{'red' if one else 'blue'} coat {row}" for row, one in enumerate(bit)]
        task = task_of(np.eye(4)[label], np.full((200, 4), 0.25), texts=texts)
        record, head = learn_prompt(task, [candidate(states)], 200)
        assert head
        accuracy = cast(Any, record.learnt).accuracy
        assert (head.words is not None, record.reads_words) == (helps, helps)
        found = HeadScorer({0: head}, [slice(4)], [0]).scores(states, RowLayout(N_EMBD), edge, cast(Any, None), texts)
        assert accuracy > 0.95 if helps else accuracy <= (found.argmax(axis=1) == label).mean() < 0.7


@cases(
    (
        ["<s>\na, y.</s>\nq: {query}\nis:", "<s>\nbc, y.</s>\nq: {query}\nis:"],
        ["<s>\na, y.\nbc, y.\n- a x\n- b x</s>\nq: {query}\n- {name}", "<s>\na, y.\nbc, y.</s>\nq: {query}\n{name}:"],
        " is:",
    ),
    (["L\n{query}\na:", "L\n{query}\nb:"], ["L\n- a x\n- b x\n{query}\n- {name}", "L\n{query}\n{name}:"], ":"),
    (["A {query} i: ", "B {query} i: "], ["A\nB\n- a x\n- b x\n{query}\n- {name}", "A\nB\n{query}\n{name}:"], " i: "),
    (["{query}", "{query}"], ["- a x\n- b x\n{query}\n- {name}", "{query}\n{name}:"], ":"),
    (["One alone {query}:"], [], ""),
)
def test_the_prompts_texts_are_joined(texts: list[str], joined: list[str], cue: str) -> None:
    prompts = [PromptConfig(name=n, prompt_template=t, labels=("x", "y")) for n, t in zip("ab", texts, strict=False)]
    options = [(False, False), (False, True), (True, False)]
    found = [common_texts(prompts, ["a coat"], is_log=log, is_few=few)[:-2] for log, few in options]
    assert found == [joined, joined[1:], [text.removesuffix(":") + cue for text in joined[1:]]]
    close = [prompt.changed(label_prefix="") for prompt in prompts]
    assert common_texts(close, ["a coat"], is_log=False, is_few=False)[:-2] == joined[1:]


def test_shares_of_labels_are_found_among_rows_without_labels() -> None:
    """By a fit to rows with equally many of each label."""
    rng, prior = np.random.default_rng(0), np.full(3, 1 / 3)
    label = rng.choice(3, 4000, p=[0.7, 0.25, 0.05])
    state = label[:, None] + rng.normal(size=(4000, 1))
    p = np.exp(log_softmax(-((state - np.arange(3)) ** 2) / 2))
    assert abs(p.mean(axis=0)[0] - 0.7) > 0.1
    np.testing.assert_allclose(shares_of_labels(p, prior), [0.7, 0.25, 0.05], atol=0.03)


@cases(
    (None, True, None),
    ({"a": 0.9}, False, [0.9, 0.05, 0.05]),
    ({"c": 0.6, "b": 0.3}, True, [0.1, 0.3, 0.6]),
    ({"x": 0.5}, True, [0.4, 0.3, 0.3]),
    ({}, False, [0.95, 0.03, 0.02]),
)
def test_gains_are_stated_for_shares(shares: dict[str, float] | None, kept: bool, stated: list[float] | None) -> None:
    """The prompt always answers a; 100 labelled rows, 40, 30 and 30 of a label, are beside 400 of which most are a."""
    rng, middle = np.random.default_rng(0), np.random.default_rng(1).normal(size=(3, N_EMBD))
    label = np.concatenate([np.repeat([0, 1, 2], [40, 30, 30]), rng.choice(3, 400, p=[0.95, 0.03, 0.02])])
    states = unit_states((middle[label] * 0.4 + rng.normal(size=(500, N_EMBD))).astype(np.float32))
    task = task_of(np.eye(3)[label[:100]], np.tile([0.8, 0.1, 0.1], (500, 1)), shares=shares)
    record, head = learn_prompt(task, [candidate(states, rows=task.index)], 500)
    assert (record.kept, head is not None) == (kept, kept)
    if stated is None or shares == {"x": 0.5}:  # a label of another prompt
        assert "+" in record.reason
        return
    assert record.shares is not None
    np.testing.assert_allclose(list(record.shares.values()), stated, atol=0.03)
    if head:  # it answers as often as is stated
        answers = head_scores(head, states[:100], np.zeros((100, 3), np.float32)).argmax(axis=1)
        weight = np.array(stated)[label[:100]] / np.array([0.4, 0.3, 0.3])[label[:100]]
        counts = np.bincount(answers, weights=weight, minlength=3)
        np.testing.assert_allclose(counts / counts.sum(), stated, atol=0.1)


@cases((7, None, 20, False, False), (7, 100, 100, True, True), (7, 24, 24, False, False), (40, 100, 100, False, True))
def test_a_gain_without_proof_is_compared_on_more_rows(
    every: int, read: int | None, n_compared: int, is_proven: bool, has_head: bool
) -> None:
    """The prompt is wrong in every so many-th row; the head's states tell the label."""
    label = np.arange(100) % 2
    states = unit_states(np.random.default_rng(1).normal(size=(2, N_EMBD))[label].astype(np.float32))
    target = np.eye(2)[label]
    p = np.where((np.arange(100) % every == 3)[:, None], target[:, ::-1], target)
    read_more = None if read is None else lambda task: p[:read]
    record, head = learn_prompt(task_of(target, p[:20]), [candidate(states)], 100, read_more=read_more)
    assert (record.n_compared, record.kept, head is not None) == (n_compared, is_proven, has_head)


def test_heads_of_a_log_answer_labels_as_often_as_the_prompt() -> None:
    """Of three, b wins seldom and narrowly, by what the states tell in part; c never does."""
    rng = np.random.default_rng(0)
    known, unknown = rng.normal(size=(2, 600))
    logit = np.stack([np.ones(600), known + unknown - 0.5, np.full(600, -4.0)], axis=1)
    p = np.exp(log_softmax(logit))
    states = unit_states(np.stack([np.ones(600), known * 0.3, *rng.normal(size=(2, 600))], axis=1).astype(np.float32))
    task, candidates = task_of(p, p, n_known=0), [candidate(states)]
    record, head = learn_prompt(task, candidates, 600, 0.0)
    assert head
    assert record.agreement
    assert record.unlearnt == task.prompt.labels[2:]
    always = np.tile([0.9, 0.1, 0.0], (600, 1))
    record, none = learn_prompt(task_of(always, always, n_known=0), candidates, 600, 0.0)
    assert (none, record.unlearnt, record.reason[:30]) == (None, (), "all 600 rows have one label, '")
    wanted = np.bincount(p.argmax(axis=1), minlength=3)
    assert 60 < wanted[1] < 200
    found = np.bincount((states @ head.weight + head.bias).argmax(axis=1), minlength=3)
    assert np.abs(found - wanted).sum() <= 40
    _, plain = task.fits(candidates)[0]
    assert np.bincount((states @ plain.weight + plain.bias).argmax(axis=1), minlength=3)[1] < wanted[1] / 2


def test_large_states_keep_their_direction() -> None:
    """Also where a sum of squares is more than float32 has."""
    states = np.random.default_rng(0).normal(size=(2, N_EMBD)).astype(np.float32)
    np.testing.assert_allclose(unit_states(states * np.float32(1e25)), unit_states(states), rtol=1e-6)


# What is fitted to labelled rows: temperatures, priors and stated errors.


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


def test_a_fit_has_to_help_by_more_than_a_standard_error() -> None:
    assert [Verdict(2.0, 1.0, 0.8, error, 0.1, 0.1).accepted for error in (0.1, 0.3)] == [True, False]


def test_a_fit_that_helps_is_accepted_by_fits_to_the_other_folds() -> None:
    score, accepted = drawn(100, 2.0, BIAS)
    verdict = cross_validate(score, accepted)
    losses = np.empty(100)
    for fold in np.array_split(np.random.default_rng(0).permutation(100), 5):
        others = np.setdiff1d(np.arange(100), fold)
        temperature = fit(score[others], accepted[others])
        losses[fold] = log_losses(log_softmax(score[fold] / temperature), accepted[fold])
    before = log_losses(log_softmax(score), accepted)
    assert verdict.log_loss_after == pytest.approx(losses.mean())
    assert verdict.log_loss_before == pytest.approx(before.mean())
    assert verdict.standard_error == pytest.approx((before - losses).std(ddof=1) / 10)
    assert verdict.temperature == fit(score, accepted)
    assert (verdict.accepted, verdict.ece_after < verdict.ece_before) == (True, True)


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
        numbers = arrays(np.float64, n, elements=st.floats(-30, 30))
        temperature = draw(st.sampled_from([1.0, 0.3, 4.0]))
        prior, bias = (draw(st.none() | numbers) for _ in range(2))
        found.append(Adjustment(temperature=temperature, prior=prior, bias=bias))
    if all(adjustment.is_neutral for adjustment in found):
        found[0] = Adjustment(temperature=2.0)
    first = [0, *np.cumsum(sizes).tolist()]
    shape = draw(st.integers(1, 3)), first[-1]
    return found, first, draw(arrays(np.float32, shape, elements=st.floats(-30, 30, width=32)))


@given(prompts())
def test_all_prompts_are_by_the_formula(case: tuple[list[Adjustment], list[int], npt.NDArray[np.float32]]) -> None:
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


N_REDRAWS = 1000
TARGET = 0.05
POPULATIONS: dict[str, Callable[[FloatArray], FloatArray]] = {
    "calibrated": lambda c: 1 - c,
    "overconfident": lambda c: np.minimum(0.02 + 2 * (1 - c), 1),
    "just too many errors": lambda c: np.full(len(c), 0.0505),
    "errors among the surest": lambda c: np.where(c > 0.9, 0.12, np.where(c > 0.6, 0.01, 0.2)),
    "up and down": lambda c: 0.06 + 0.05 * np.sin(20 * c),
    "always wrong": lambda c: np.ones(len(c)),
}
"""The error of an answer by its probability."""


@cases((10, 0, 0.05), (100, 3, 0.05), (1000, 60, 0.05), (10, 9, 0.9), (5, 5, 0.5), (4, 1, 0.5))
def test_the_distributions_are_scipys(n: int, k: int, p: float) -> None:
    assert binomial_cdf(k, n, p) == pytest.approx(binom.cdf(k, n, p), rel=1e-9)
    expected = 1.0 if k == n else beta.ppf(0.95, k + 1, n - k)
    assert upper_bound(k, n, 0.95) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("name", POPULATIONS)
def test_the_error_stays_below_its_target_in_as_many_redraws_as_stated(name: str, ties: bool) -> None:
    """2,000 queries, so that the error above a threshold is known; a claim may be wrong in 5 % of the redraws."""
    random = np.random.default_rng(7)
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

    def steps(n: int, every: int) -> list[Any]:
        """Of n rows of which every so many-th, beginning with the surest, is wrong."""
        return error_thresholds(1 - np.arange(n) / n, np.arange(n) % every == 0, TARGET, 0.95)

    few = error_thresholds(np.linspace(0, 1, 40), np.zeros(40, bool), TARGET, 0.95)
    assert few == []
    needed = rows_needed(40, few, TARGET, 0.95)
    assert needed is not None
    assert error_thresholds(np.linspace(0, 1, needed), np.zeros(needed, bool), TARGET, 0.95)[0].accepted
    assert not error_thresholds(np.linspace(0, 1, needed - 1), np.zeros(needed - 1, bool), TARGET, 0.95)

    assert not any(step.accepted for step in steps(300, 25))  # 4 %
    more = rows_needed(300, steps(300, 25), TARGET, 0.95)
    assert more is not None
    assert any(step.accepted for step in steps(2 * more, 25))
    assert rows_needed(300, steps(300, 3), TARGET, 0.95) is None
