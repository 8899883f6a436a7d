"""A scikit-learn estimator that labels texts by one prompt of a configuration, and learns a head from labelled ones
where that is better (docs/learn.md). It answers without any. Extra `sklearn`.

Estimators of a process with the same configuration and prompt share one open classifier. The first `fit`, `predict` or
`predict_proba` opens it; creating, cloning, pickling and unpickling an estimator opens nothing. A classifier is closed
when the last estimator that used it is gone, except the one that was used last: it stays open for the next estimator,
such as that of the next fold of a cross-validation.
"""

import os
import threading
import weakref
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from .config.words import JsonObject

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import assert_all_finite
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_consistent_length, column_or_1d
except ImportError as e:
    raise ImportError("qcls_gguf.sklearn needs scikit-learn: pip install 'qcls-gguf[sklearn]'") from e

from .classifier import Classifier
from .config.fitted import Head, Heads
from .config.resources import DEFAULT_CONFIG
from .config.schema import Config
from .config.words import listed, shown
from .core.startup import Prepared
from .data.labelled import LabelledQuery, label_of
from .engine.open import compile_config
from .learning.learn import learn_heads, why_not
from .learning.report import LearntPrompt
from .opening import with_one_prompt
from .statistics import FloatArray
from .system.lifetimes import Ledger

__all__ = ["GgufClassifier", "close_all"]

_CHUNK = 1000
"""Texts of one request: its answers are in memory at once; of earlier ones only the probabilities are kept."""

Key = tuple[int, str | Path | Config, str | None]


class GgufClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Labels texts by one prompt of a configuration.

    X is a list, a 1-D array or a column of texts. `classes_` are the prompt's labels in sorted order, after `fit(X, y)`
    only those in y. `predict` gives the most probable of them; it ignores `min_confidence` and `fallback` of the
    configuration, because a fallback is not a class.

        GgufClassifier("fashion-8", "category").predict(["red dress", "blue jeans"])
    """

    learnt_: LearntPrompt | None = None
    """what `fit` learnt from y, and why a head answers or none does; None where y has too few rows, or lacks labels"""
    _fitted: tuple[npt.NDArray[Any], npt.NDArray[np.int64]] | None = None
    """the classes of y, and their places among the prompt's labels"""
    _head: Head | None = None
    _headed: "tuple[_SharedClassifier, Classifier] | None" = None

    def __init__(
        self,
        config: str | Path | Config = DEFAULT_CONFIG,
        prompt: str | None = None,
        *,
        classes: Sequence[str] | None = None,
    ) -> None:
        """Nothing is opened or checked yet.

        config: as for Classifier.from_config. prompt: the name of one of its prompts; None: its only one. classes: the
        labels that integers in y stand for, in this order, if there are no labels of these names; None: all labels of
        the prompt in sorted order, as scikit-learn's LabelEncoder numbers them.
        """
        self.config = config
        self.prompt = prompt
        self.classes = classes

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: N803
        """Open the classifier, check X and y, record the classes, and learn a head from y, as `qcls-gguf learn` does.

        y: labels of the prompt, also as numbers or truth values, or integers for them (see `classes`), as
        VotingClassifier and cross_val_predict pass them to their estimators. Answers are among the classes in y;
        without y, among all labels. A head answers only where it is better than the labels' texts; `learnt_`
        says so. Raises ValueError if X has anything but texts, if y has other classes or numbers that may stand for
        different labels, and what Classifier.from_config raises.
        """
        texts = _texts(X)
        if not texts:
            raise ValueError("X is empty: 0 samples, at least 1 is needed")
        self._head = self._headed = self.learnt_ = self._fitted = None
        self._opened()
        if y is None:
            return self
        y = column_or_1d(y, warn=True)
        check_consistent_length(texts, y)
        assert_all_finite(y, input_name="y")
        try:
            check_classification_targets(y)
            classes = np.unique(y)
        except TypeError as e:
            what = "give all labels as texts, or all as numbers"
            raise ValueError(f"y has values that cannot be compared, such as texts and None: {what}: {e}") from None
        self._learn(classes, texts, y)
        return self

    def _learn(self, classes: npt.NDArray[Any], texts: Sequence[str], y: Any) -> None:
        """Record the classes, and learn a head where the rows are enough."""
        shared = self._opened()
        columns = self._columns(classes, shared.labels)
        self._fitted, classifier = (classes, columns), shared.classifier
        (prompt,) = classifier.config.prompts
        labels = [prompt.labels[column] for column in columns[np.searchsorted(classes, np.asarray(y))]]
        if why_not(prompt, Counter(labels), len(labels)):
            return
        rows = [
            LabelledQuery(line=line, query=text, labels={prompt.name: (label,)})
            for line, (text, label) in enumerate(zip(texts, labels, strict=True), 1)
        ]
        raw = classifier.config.changed(heads=None, calibration=None)
        with Classifier.from_config(raw, model=classifier.engine.model) as asked:
            learnt = learn_heads(asked, rows)
        self.learnt_ = learnt.prompts[prompt.name]
        if prompt.name in learnt.heads:
            self._head = learnt.heads[prompt.name][1]

    def _answering(self) -> Classifier:
        """The classifier that answers: the shared one, or one of the same model with the learnt head."""
        shared = self._opened()
        if self._head is None:
            return shared.classifier
        if self._headed is None or self._headed[0] is not shared:
            config, model = shared.classifier.config, shared.classifier.engine.model
            of, prompts = model.facts, {config.prompts[0].name: self._head}
            heads = Heads(model_sha256=model.sha256(), n_layer=of.n_layer, n_embd=of.n_embd, prompts=prompts)
            compiled = compile_config(config, model, fitted=(config, None, heads))
            opened = Prepared(compiled=compiled, sources=config.prompts, model=model, owns_model=False, ledger=Ledger())
            self._headed = shared, Classifier.open(opened)
        return self._headed[1]

    @property
    def classes_(self) -> npt.NDArray[Any]:
        """(n_classes,) the possible answers of `predict`, in the order of predict_proba's columns."""
        if self._fitted is not None:
            return self._fitted[0]
        shared = self._held()
        return np.array(
            sorted(shared.labels if shared else with_one_prompt(self.config, self.prompt).prompts[0].labels)
        )

    def predict(self, X: Any) -> npt.NDArray[Any]:  # noqa: N803
        """(n,) the most probable class of each text. Raises as `predict_proba`."""
        probabilities = self.predict_proba(X)
        classes: npt.NDArray[Any] = self.classes_[np.argmax(probabilities, axis=1)]
        return classes

    def predict_proba(self, X: Any) -> FloatArray:  # noqa: N803
        """(n, n_classes) the probability of each class, normalised over the classes, so that rows sum to 1.

        Equal texts are computed once. Raises ValueError if X has anything but texts, QueryError for a text that is too
        long, and what Classifier.classify_batch raises.
        """
        texts = _texts(X)
        shared = self._opened()
        classes = self.classes_.tolist()
        columns = self._fitted[1] if self._fitted else np.array([shared.labels.index(label) for label in classes])
        distinct = list(dict.fromkeys(texts))
        rows = {text: row for row, text in enumerate(distinct)}
        found = np.empty((len(distinct), len(shared.labels)))
        answering = self._answering()
        for first in range(0, len(distinct), _CHUNK):
            results = answering.classify_batch(distinct[first : first + _CHUNK])
            for row, result in enumerate(results, first):
                found[row] = [score.probability for score in result.results[0].scores]
        probabilities = found[[rows[text] for text in texts]][:, columns]
        totals = probabilities.sum(axis=1, keepdims=True)
        even = np.full_like(probabilities, 1 / len(columns))
        shares: FloatArray = np.divide(probabilities, totals, out=even, where=totals > 0)
        return shares

    def _columns(self, classes: npt.NDArray[Any], labels: Sequence[str]) -> npt.NDArray[np.int64]:
        """The place of each class among the prompt's labels. Raises ValueError for classes that are none of them."""
        values = classes.tolist()
        if classes.dtype.kind in "iuf":
            named = self._numbered(list(map(int, values)), labels)
        else:
            named = [label_of(value, labels) for value in values]
        if unknown := [value for value, name in zip(values, named, strict=True) if name not in labels]:
            what = listed(list(map(shown, unknown)), most=5)
            raise ValueError(
                f"y: {what}: no label of the prompt, which has {', '.join(labels)}: map y to these, or leave y out"
            )
        return np.array([labels.index(name) for name in named if name is not None], np.int64)

    def _numbered(self, numbers: Sequence[int], labels: Sequence[str]) -> list[str | None]:
        """The labels that numbers stand for: those of the same value, unless they may as well be the places that a
        meta-estimator gave to other classes. Raises ValueError where that is ambiguous.
        """
        names = list(labels if self.classes is None else self.classes)
        by_value = [label_of(number, names) for number in numbers]
        last = len(names) - 1
        if numbers[0] < 0 or numbers[-1] > last:
            return by_value
        readings = [] if None in by_value else [by_value]
        if numbers[-1] == last:  # else they may be places among fewer classes
            orders = [names] if self.classes is not None else [sorted(names), _by_value(names)]
            readings += [[order[number] for number in numbers] for order in orders]
            if all(reading == readings[0] for reading in readings):
                return readings[0]
        raise ValueError(
            f"y has integers from {numbers[0]:d} to {numbers[-1]:d}, and they stand for {len(names)} labels, "
            f"0 to {last} ({', '.join(names)}), or for labels of that name: set classes to the labels that y has, in "
            "the order that numpy.unique(y) has, or give y as labels"
        )

    def _opened(self) -> "_SharedClassifier":
        """The open classifier, which the estimator keeps from then on."""
        self._shared = self._held() or _share(self._key)
        return self._shared

    def _held(self) -> "_SharedClassifier | None":
        """The open classifier that the estimator keeps, if it still fits its parameters and process."""
        shared: _SharedClassifier | None = getattr(self, "_shared", None)
        return shared if shared and shared.is_open and shared.key == self._key else None

    @property
    def _key(self) -> Key:
        return os.getpid(), self.config, self.prompt

    def __getstate__(self) -> JsonObject:
        """Everything but open classifiers, for copies and pickles."""
        return {key: value for key, value in super().__getstate__().items() if key not in ("_shared", "_headed")}

    def __sklearn_is_fitted__(self) -> bool:
        """True: it answers without a fit."""
        return True

    def __sklearn_tags__(self) -> Any:
        """It takes texts, and needs neither `fit` nor y."""
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.target_tags.required = False
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        return tags


def close_all() -> None:
    """Close the classifiers of this process's estimators; an estimator that is used again opens a new one."""
    global _last
    with _lock:
        _last = None
        for shared in list(_open.values()):
            shared.close()
        _open.clear()


class _SharedClassifier:
    """An open classifier of one prompt; closed when no estimator keeps it."""

    def __init__(self, key: Key) -> None:
        config = with_one_prompt(key[1], key[2])
        self.key = key
        self.labels = config.prompts[0].labels
        self.classifier = Classifier.from_config(config)
        self.close = weakref.finalize(self, self.classifier.close)

    @property
    def is_open(self) -> bool:
        return self.close.alive


_lock = threading.Lock()
_open: WeakValueDictionary[Key, _SharedClassifier] = WeakValueDictionary()
_last: _SharedClassifier | None = None
"""held, so that the next estimator finds it open"""


def _share(key: Key) -> _SharedClassifier:
    """The open classifier of a configuration and a prompt. Raises what Classifier.from_config raises."""
    global _last
    with _lock:
        shared = _open.get(key)
        if shared is None or not shared.is_open:
            _last = None  # two large models need not be open at once
            shared = _open[key] = _SharedClassifier(key)
        _last = shared
        return shared


def _by_value(labels: Sequence[str]) -> list[str]:
    """Labels in the order of their values, if all are numbers, else of their names."""
    try:
        return sorted(labels, key=float)
    except ValueError:
        return sorted(labels)


def _texts(values: Any) -> list[str]:
    """The texts of X. Raises ValueError for anything else."""
    if isinstance(values, str | bytes):
        raise ValueError("X is one text: give a list of texts")
    array = np.asarray(values, dtype=object)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise ValueError(f"X has the shape {array.shape}: expected one text for each sample")
    texts: list[str] = array.tolist()
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"X[{index}]: {shown(text)} is {type(text).__name__}, not text")
    return texts
