"""The scikit-learn estimator: scikit-learn's own checks, its meta-estimators, and what it holds open."""

import gc
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cases import cases
from commands import tiny_rows
from hypothesis import event, given
from hypothesis.strategies import DataObject, booleans, data, lists, sampled_from
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import check_array

from qcls_gguf import Classifier, Config, ConfigError, PlanError, PromptConfig, RuntimeConfig, load_config
from qcls_gguf.sklearn import GgufClassifier, _open, close_all

ROWS = tiny_rows("dev")[:40]
X = [row["query"] for row in ROWS]
Y = np.array([row["labels"]["category"] for row in ROWS])
LABELS = next(prompt.labels for prompt in load_config("fashion-8").prompts if prompt.name == "category")
PROMPT = PromptConfig(name="size", prompt_template="{query} is", labels=("small", "medium", "large", "huge"))
SMALL = Config(prompts=(PROMPT,), runtime=RuntimeConfig(n_threads=1, max_query_tokens=16))


class OfNumbers(GgufClassifier):
    """The estimator for scikit-learn's checks, which give rows of numbers for texts, and classes of their own."""

    def __repr__(self) -> str:
        return "OfNumbers()"

    def fit(self, X: Any, y: Any = None) -> Any:  # noqa: N803
        return super().fit(_as_texts(X), y)

    def predict_proba(self, X: Any) -> Any:  # noqa: N803
        return super().predict_proba(_as_texts(X))

    def _columns(self, classes: Any, labels: Any) -> Any:
        return np.arange(len(classes))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        tags.input_tags.one_d_array = False
        tags.classifier_tags.poor_score = True
        return tags


def _as_texts(rows: Any) -> list[str]:
    return [f"{row[0]:.0f}" for row in check_array(rows)]


NO_FEATURES = "a text has no features to count: none are recorded, and rows of another length are other texts"
OF_FEATURES = "check_n_features_in", "check_n_features_in_after_fitting", "check_classifiers_train"


@parametrize_with_checks([OfNumbers(SMALL)], expected_failed_checks=lambda _: dict.fromkeys(OF_FEATURES, NO_FEATURES))  # type: ignore[untyped-decorator]
def test_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.fixture(autouse=True, scope="module")
def _closed_at_the_end() -> Iterator[None]:
    yield
    close_all()


def test_answers_are_those_of_the_classifier() -> None:
    estimator = GgufClassifier("fashion-8", "category")
    with Classifier.from_config("fashion-8") as reference:
        results = [result.results[0] for result in reference.classify_batch(X[:10])]
    assert estimator.predict(X[:10]).tolist() == [result.label for result in results]
    given = [{score.label: score.probability for score in result.scores} for result in results]
    wanted = np.array([[row[label] for label in estimator.classes_] for row in given])
    probabilities = estimator.predict_proba(np.array(X[:10], object)[:, None])  # a column of a table
    assert probabilities == pytest.approx(wanted, abs=1e-3)
    assert estimator.classes_.tolist() == sorted(LABELS)
    assert estimator.score(X, Y) > 0.8
    assert estimator.predict_proba([]).shape == (0, 10)


def test_after_a_fit_answers_are_among_the_classes_of_y() -> None:
    estimator = GgufClassifier("fashion-8", "category")
    whole = dict(zip(estimator.classes_, estimator.predict_proba(["red dress"])[0], strict=True))
    assert estimator.fit(["a", "b", "a"], ["jeans", "dress", "jeans"]).classes_.tolist() == ["dress", "jeans"]
    (some,) = estimator.predict_proba(["red dress"])
    assert some == pytest.approx(np.array([whole["dress"], whole["jeans"]]) / (whole["dress"] + whole["jeans"]))
    assert estimator.fit(["a"]).classes_.tolist() == sorted(LABELS)


@cases(
    (["dress", "sari"], "y: 'sari': no label of the prompt, which has dress, jeans, .*: map y to these"),
    ([0, 1], "y has integers from 0 to 1, and they stand for 10 labels, 0 to 9"),
    ([0.5, 1.5], "Unknown label type: continuous"),
    ([True, False], "y: False, True: no label of the prompt"),
    (["dress", None], "y has values that cannot be compared"),
)
def test_classes_that_are_no_labels_are_refused(y: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        GgufClassifier("fashion-8", "category").fit(["a", "b"], y)


@cases(
    ("red dress", "X is one text: give a list of texts"),
    (["red dress", None], r"X\[1\]: None is NoneType, not text"),
    ([["red", "dress"]], r"X has the shape \(1, 2\)"),
)
def test_what_is_no_text_is_refused(texts: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        GgufClassifier("fashion-8", "category").predict(texts)


def test_what_the_classifier_refuses_is_its_own_error() -> None:
    with pytest.raises(PlanError, match="tokens"):
        GgufClassifier("fashion-8", "category").predict(["long " * 500])
    with pytest.raises(ConfigError, match="has 8 prompts: name one of them: category, audience"):
        GgufClassifier("fashion-8").fit(["a"])


def test_only_what_is_asked_opens_a_classifier() -> None:
    close_all()
    estimator = GgufClassifier("fashion-8", "category")
    assert "tee" in estimator.classes_
    pickled = pickle.dumps(estimator)
    assert not opened()
    assert estimator.predict(["red dress"]).tolist() == ["dress"]
    (first,) = opened()
    for other in (clone(estimator), pickle.loads(pickled), pickle.loads(pickle.dumps(estimator))):
        assert other.predict(["blue jeans"]).tolist() == ["jeans"]
        assert opened() == {first}, "equal settings share one"
    estimator.set_params(prompt="audience")
    assert (estimator.predict(["dress for girls"]).tolist(), len(opened())) == (["girl"], 2)
    del first, other
    assert len(opened()) == 1, "nobody is left who asked the first"
    close_all()
    assert not opened()
    assert estimator.predict(["dress for girls"]).tolist() == ["girl"]


def opened() -> set[Classifier]:
    gc.collect()
    return {shared.classifier for shared in _open.values() if shared.is_open}


def test_meta_estimators() -> None:
    often = [index for index, label in enumerate(Y) if (label == Y).sum() > 1]
    texts, labels = [X[index] for index in often], Y[often]
    names = sorted(set(labels))
    assert len(names) < len(LABELS)
    model = GgufClassifier("fashion-8", "category", classes=names)
    probabilities = cross_val_predict(model, texts, labels, cv=StratifiedKFold(2), method="predict_proba")
    whole = GgufClassifier("fashion-8", "category").fit(texts, labels)
    assert probabilities == pytest.approx(whole.predict_proba(texts), abs=1e-3)
    calibrated = CalibratedClassifierCV(model, cv=StratifiedKFold(2), ensemble=False).fit(texts, labels)
    assert calibrated.score(texts, labels) > 0.8


LABELS_OF_VALUES = [
    [*map(str, range(3))], ["1", "2", "3"], ["9", "10", "8"], [*map(str, range(12))], ["true", "false"], ["1.0", "2.0"],
    ["-1", "0", "1"], ["small", "large", "huge"],
]  # fmt: skip


@given(data())
def test_a_number_stands_for_its_label_or_is_refused_however_classes_are_numbered_again(drawn: DataObject) -> None:
    """Classes as they are and as LabelEncoder numbers them, all of them or those of a fold, as numbers or as texts."""
    labels = drawn.draw(sampled_from(LABELS_OF_VALUES))
    named = drawn.draw(lists(sampled_from(labels), min_size=1, unique=True))
    values: list[Any] = named
    if labels[0] != "small" and drawn.draw(booleans()):
        values = [label == "true" if labels[0] == "true" else drawn.draw(sampled_from([int, float]))(float(label))
                  for label in named]  # fmt: skip
    right = dict(zip(values, named, strict=True))
    classes = np.unique(np.array(values))
    fold = drawn.draw(lists(sampled_from(range(len(classes))), min_size=1, unique=True).map(sorted))
    is_numbered = drawn.draw(booleans())
    estimator = GgufClassifier(classes=drawn.draw(sampled_from([None, [right[value] for value in classes.tolist()]])))
    try:
        columns = estimator._columns(np.array(fold) if is_numbered else classes[fold], labels)
    except ValueError as e:
        event("refused")
        refused = str(e)
    else:
        event("read")
        assert [labels[column] for column in columns] == [right[value] for value in classes[fold].tolist()]
        return
    assert is_numbered or classes.dtype.kind in "biuf"
    assert "set classes to" in refused or "no label of the prompt" in refused


COLOURS = ("red", "blue", "small")
OF_COLOURS = PromptConfig(name="colour", prompt_template="Item: {query}\nAnswer:", labels=("first", "second", "third"))


def coloured(n: int, seed: int) -> tuple[list[str], list[str]]:
    """Texts whose colour tells the label, which its own text does not."""
    rng = np.random.default_rng(seed)
    which = [i % 3 for i in range(n)]
    items = rng.choice(["dress", "coat", "skirt", "jeans"], n)
    texts = [f"{COLOURS[i]} {item} {rng.integers(100)}" for i, item in zip(which, items, strict=True)]
    return texts, [OF_COLOURS.labels[i] for i in which]


def test_a_head_is_learnt_where_it_is_proven_better() -> None:
    texts, labels = coloured(90, 0)
    new, wanted = coloured(60, 1)
    config = Config(prompts=(OF_COLOURS,), runtime=RuntimeConfig(n_threads=1))
    zero_shot = GgufClassifier(config).fit(texts)
    few = GgufClassifier(config).fit(texts[:9], labels[:9])
    assert few.learnt_ is None
    np.testing.assert_array_equal(few.predict_proba(new), zero_shot.predict_proba(new))
    learnt = clone(few).fit(texts, labels)
    assert learnt.learnt_ is not None
    assert learnt.learnt_.kept
    assert learnt.score(new, wanted) > max(0.8, zero_shot.score(new, wanted))
    again = pickle.loads(pickle.dumps(learnt))
    np.testing.assert_array_equal(again.predict_proba(new), learnt.predict_proba(new))
    unsure = GgufClassifier(config).fit(texts, np.random.default_rng(2).permutation(labels))  # which nothing tells
    assert unsure.learnt_ is not None
    assert "no gain" in unsure.learnt_.reason
    np.testing.assert_array_equal(unsure.predict_proba(new), zero_shot.predict_proba(new))
    close_all()
    assert learnt.score(new, wanted) > 0.8
