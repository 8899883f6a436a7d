"""What is stated holds as often as it is stated: over redraws of rows from populations whose truth is known."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import beta, betabinom, binom
from sklearn.base import BaseEstimator, ClassifierMixin

from qcls_gguf.config.calibration_file import StatedSets
from qcls_gguf.config.prompt import LabelSets
from qcls_gguf.score.adjustment import drawn, sets_of
from qcls_gguf.statistics import FloatArray, IntArray, beta_binomial_cdf, binomial_cdf, upper_bound
from qcls_gguf.statistics.drift import FALSE_ALARMS, WINDOW, DriftTest, length_bin, probability_bin
from qcls_gguf.statistics.stated import (
    agreement_threshold,
    conformal_quantile,
    conformity_scores,
    error_thresholds,
    label_sets,
    least_rows,
    p_value_of_coverage,
    p_value_of_error,
    rows_for_agreement,
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
    assert beta_binomial_cdf(k, n, 90, 11) == pytest.approx(betabinom.cdf(k, n, 90, 11), rel=1e-9)
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


def other_answers(n: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Answers whose chance to differ falls with their probability: below 0.9 they differ far too often."""
    probability = 1 - generator.random(n) ** 2
    differs = generator.random(n) < np.where(probability < 0.9, 0.3, 0.002)
    return probability, differs


def test_a_stage_answers_where_it_is_sure() -> None:
    probability, differs = other_answers(6000, RANDOM(1))
    threshold = agreement_threshold(probability, differs, 0.99, 0.95)
    assert threshold is not None
    assert 0.8 < threshold < 0.93
    n_other = ((probability[3000:] >= threshold) & differs[3000:]).sum()
    assert upper_bound(int(n_other), 3000, 0.95) <= 0.01


def test_an_agreement_is_broken_no_more_often_than_stated() -> None:
    """The true agreement of each threshold is computed from a large sample; four standard errors are allowed for."""
    sample_p, sample_d = other_answers(100_000, RANDOM(2))
    n_runs, broken = 200, 0
    generator = RANDOM(3)
    for _ in range(n_runs):
        threshold = agreement_threshold(*other_answers(1200, generator), 0.98, 0.9)
        if threshold is not None:
            broken += (sample_d & (sample_p >= threshold)).mean() > 0.02
    assert broken / n_runs <= 0.1 + 4 * np.sqrt(0.1 * 0.9 / n_runs)


def test_without_enough_rows_or_agreement_no_stage_answers() -> None:
    n = rows_for_agreement(0.99, 0.95)
    assert n == 2 * 299
    sure = np.full(n, 0.99)
    same, other = np.zeros(n, np.bool_), np.ones(n, np.bool_)
    assert agreement_threshold(sure, same, 0.99, 0.95) == 0.99
    assert agreement_threshold(sure[2:], same[2:], 0.99, 0.95) is None
    assert agreement_threshold(sure, other, 0.99, 0.95) is None
    assert agreement_threshold(np.ones(n), same, 0.99, 0.95) == 1.0


def drawn_rows(n: int, seed: int, n_labels: int = 6) -> tuple[FloatArray, npt.NDArray[np.intp]]:
    """Probabilities that are too sure, and labels by other ones; the first label is true most often."""
    random = RANDOM(seed)
    score = random.normal(0, 1.5, (n, n_labels)) + np.linspace(2, 0, n_labels)
    power = [np.exp(scale * score - (scale * score).max(axis=1, keepdims=True)) for scale in (1.0, 1.6)]
    true, stated = (each / each.sum(axis=1, keepdims=True) for each in power)
    label = (true.cumsum(axis=1) > random.random((n, 1))).argmax(axis=1)
    return stated, label


@pytest.mark.parametrize("method", ["lac", "aps", "aps randomised"])
def test_sets_hold_the_label_as_often_as_stated(method: str) -> None:
    """Over redraws of 99 rows; exactly so where no label more than needed is in the sets."""
    name, _, randomised = method.partition(" ")
    p, label = drawn_rows(300_000, 1)
    u = RANDOM(2).random((len(p), 1)) if randomised else None
    every = np.arange(len(p))
    scores = conformity_scores(p, name, 1.0 if u is None else u)[every, label]
    shares, seen = [], []
    for rows in RANDOM(3).permutation(len(p))[: N_REDRAWS * 199].reshape(N_REDRAWS, 199):
        own, new = rows[:99], rows[99:]
        threshold = conformal_quantile(scores[own], 0.9)
        sets = label_sets(p[new], threshold, name, None if u is None else u[new])
        n_covered = int(sets[np.arange(100), label[new]].sum())
        shares.append(n_covered / 100)
        seen.append(p_value_of_coverage(n_covered, 100, 0.9, 99))
        assert name != "aps" or randomised or sets.any(axis=1).all()
    standard_error = np.std(shares) / np.sqrt(N_REDRAWS)
    assert np.mean(shares) >= 0.9 - 3 * standard_error
    assert np.mean(shares) <= (0.93 if method == "aps" else 0.91) + 3 * standard_error
    assert np.mean(np.array(seen) < 0.05) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / N_REDRAWS)


def test_sets_by_label_hold_each_label_as_often_as_stated() -> None:
    """Where sets of one threshold do not: for the rare labels."""
    p, label = drawn_rows(60_000, 4)
    scores = conformity_scores(p, "lac")
    own, new = np.arange(30_000), np.arange(30_000, 60_000)
    by_label = np.array([conformal_quantile(scores[own[label[own] == i], i], 0.9) for i in range(6)])
    together = conformal_quantile(scores[own, label[own]], 0.9)
    shares = []
    for threshold in (by_label, together):
        sets = label_sets(p[new], threshold, "lac")
        shares.append([sets[label[new] == i, i].mean() for i in range(6)])
    assert min(shares[0]) > 0.87
    assert min(shares[1]) < 0.8


def test_two_labels_may_have_thresholds_of_their_own() -> None:
    asked = LabelSets(coverage=0.9, by_label=True)
    sets = StatedSets(asked=asked, thresholds=(0.3, 0.8), n_rows=9, n_empty=0, n_full=0, mean_size=1.0)
    assert sets_of(sets, np.array([[0.6, 0.4]]), ["x"]).tolist() == [[False, True]]


def test_scores_and_sets_are_those_of_their_definitions() -> None:
    """Label by label, without arrays."""
    p, _ = drawn_rows(50, 5)
    u = drawn([str(i) for i in range(50)])
    assert ((u >= 0) & (u < 1)).all()
    assert np.array_equal(u, drawn([str(i) for i in range(50)]))
    exact, mixed = conformity_scores(p, "aps"), conformity_scores(p, "aps", u)
    sets, some = label_sets(p, 0.8, "aps"), label_sets(p, 0.8, "aps", u)
    for row in range(50):
        before = 0.0
        for label in sorted(range(6), key=lambda each: -p[row, each]):
            assert exact[row, label] == pytest.approx(before + p[row, label])
            assert mixed[row, label] == pytest.approx(before + u[row, 0] * p[row, label])
            assert sets[row, label] == (before + p[row, label] <= 0.8 or before == 0)
            assert some[row, label] == (before + u[row, 0] * p[row, label] <= 0.8)
            before += p[row, label]
    assert np.array_equal(label_sets(p, 0.8, "lac"), 1 - p <= 0.8)


class Given(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier whose probabilities are its input."""

    classes_ = np.arange(6)

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def predict_proba(self, p: FloatArray) -> FloatArray:
        return p

    def predict(self, p: FloatArray) -> IntArray:
        return np.asarray(p.argmax(axis=1))


@pytest.mark.parametrize("method", ["lac", "aps"])
def test_sets_are_those_of_mapie(method: str) -> None:
    """Of 10,000 rows for 10,000 others: equal by `lac`, by randomised `aps`, where MAPIE draws numbers of its own, of
    equal size and coverage."""
    mapie = pytest.importorskip("mapie.classification")
    p, label = drawn_rows(20_000, 8)
    own, new, own_label, new_label = p[:10_000], p[10_000:], label[:10_000], label[10_000:]
    own_u, new_u = RANDOM(9).random((2, 10_000, 1)) if method == "aps" else (None, None)
    other = mapie.SplitConformalClassifier(Given(), 0.9, method, random_state=1).conformalize(own, own_label)
    how = {"include_last_label": "randomized"} if method == "aps" else None
    theirs = other.predict_set(new, conformity_score_params=how)[1][:, :, 0]
    every = np.arange(10_000)
    scores = conformity_scores(own, method, 1.0 if own_u is None else own_u)[every, own_label]
    ours = label_sets(new, conformal_quantile(scores, 0.9), method, new_u)
    if method == "lac":
        np.testing.assert_array_equal(ours, theirs)
    assert ours.sum(axis=1).mean() == pytest.approx(theirs.sum(axis=1).mean(), abs=0.06)
    assert ours[every, new_label].mean() == pytest.approx(theirs[every, new_label].mean(), abs=0.01)


def test_a_quantile_needs_rows_and_takes_ties() -> None:
    assert least_rows(0.9) == 9
    assert conformal_quantile(np.arange(8.0), 0.9) == np.inf
    assert conformal_quantile(np.arange(9.0), 0.9) == 8
    assert conformal_quantile(np.full(50, 0.3), 0.9) == 0.3
    assert label_sets(np.full((1, 4), 0.25), 0.75, "lac").all()  # which is full
    assert not label_sets(np.full((1, 4), 0.25), 0.7, "lac").any()  # and empty


def test_a_check_fails_true_claims_as_rarely_as_stated_and_finds_false_ones() -> None:
    random = RANDOM(6)
    at_target = [p_value_of_error(k, 200, TARGET) < 0.05 for k in random.binomial(200, TARGET, N_REDRAWS)]
    assert np.mean(at_target) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / N_REDRAWS)
    twice = [p_value_of_error(k, 200, TARGET) < 0.05 for k in random.binomial(200, 2 * TARGET, N_REDRAWS)]
    assert np.mean(twice) > 0.8
    assert p_value_of_error(0, 0, TARGET) == 1


def stream(random: np.random.Generator, n: int, sure: float = 3.0, n_tokens: float = 15.0) -> list[dict[str, int]]:
    """Values of n answers; sure: larger for more probable ones."""
    p = 1 - random.beta(0.6, sure, n)
    labels, lengths = random.choice(5, n, p=[0.4, 0.3, 0.15, 0.1, 0.05]), random.lognormal(np.log(n_tokens), 0.5, n)
    columns = zip(p, labels.tolist(), lengths, strict=True)
    return [
        {"confidence": probability_bin(sure), "label": label, "length": length_bin(int(length))}
        for sure, label, length in columns
    ]


def drift_test(random: np.random.Generator, n: int) -> DriftTest:
    """A test against n values that are like the stream's."""
    rows = stream(random, n)
    return DriftTest({name: Counter(row[name] for row in rows) for name in rows[0]})


@pytest.mark.parametrize("n_reference", [20, 400])
def test_windows_like_the_reference_alarm_as_rarely_as_stated(n_reference: int) -> None:
    """However few values the reference has."""
    random, n_windows, n_alarms = RANDOM(8), 200, 0
    for _ in range(n_windows):
        test = drift_test(random, n_reference)
        n_alarms += sum(test.add(values) is not None for values in stream(random, WINDOW))
        assert (test.n_windows, len(test.alarms) <= 1) == (1, True)
    assert n_alarms <= FALSE_ALARMS * n_windows + 3 * np.sqrt(FALSE_ALARMS * n_windows)


@pytest.mark.parametrize(("change", "what"), [({"sure": 1.0}, "confidence"), ({"n_tokens": 30.0}, "length")])
def test_a_change_is_found_soon_and_named(change: dict[str, float], what: str) -> None:
    """Also after windows without one."""
    random, delays = RANDOM(9), []
    for _ in range(20):
        test = drift_test(random, 400)
        before = [test.add(values) for values in stream(random, 2 * WINDOW + 250)]
        after = [test.add(values) for values in stream(random, 2 * WINDOW, **change)]
        found = [place for place, alarm in enumerate(after) if alarm is not None]
        assert sum(alarm is not None for alarm in before) <= 1
        assert after[found[-1]] == what
        delays.append(found[0])
        assert len(test.alarms) <= test.n_windows == 5
    assert np.median(delays) < 300


def test_bins_take_what_there_is() -> None:
    assert probability_bin(0.0) == probability_bin(1e-30) == 0
    assert probability_bin(1.0) == probability_bin(1 - 1e-16) > probability_bin(0.9) > probability_bin(0.5)
    assert length_bin(0) == 0 < length_bin(10) < length_bin(20)
