"""The counterpart of `pipeline("zero-shot-classification")`: labels come with the call."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..classifier import Classifier
from ..config.prompt import PromptConfig
from ..config.words import JsonObject, kind_of, shown
from ..core.handle import LoadedPrompts
from ..errors import ConfigError, PlanError
from ..prompts.prompt_set import PromptSet
from ..questions.forms import INSTRUCTIONS, Form, Forms, FormSettings
from ..questions.question import Question, compile_question, compile_quoted
from ..score.result import PromptResult
from .base import TextPipeline

HYPOTHESIS = "This example is {}."
_MOST_SETS = 16
_YES, _NO = "yes", "no"
# The text precedes the statement, so that it is computed once for all labels.
_STATEMENT = Form(
    system="Read the text, and say whether the statement about it is true. Answer with exactly yes or no.",
    user=f"Text: {{query}}\nStatement: {INSTRUCTIONS}",
)
_CHOICE = "Which option completes this sentence about the text best?"


class _Labels(NamedTuple):
    """The arguments that determine a prompt set."""

    candidates: tuple[str, ...]
    template: str
    multi_label: bool


class ZeroShotClassificationPipeline(TextPipeline):
    """Labels texts by labels that come with the call; the answers are `{"sequence", "labels", "scores"}`.

    The labels become a prompt set on the classifier. The last 16 sets, or as many as the cache has room for, are kept
    for calls with the same labels.
    """

    task = "zero-shot-classification"

    def __init__(
        self,
        classifier: Classifier,
        *,
        owned: bool = False,
        candidate_labels: str | Sequence[str] | None = None,
        hypothesis_template: str = HYPOTHESIS,
        multi_label: bool = False,
        batch_size: int | None = None,
    ) -> None:
        """The labels, the template and multi_label are defaults of calls."""
        super().__init__(classifier, owned=owned, batch_size=batch_size)
        self._candidates = candidate_labels
        self._template = hypothesis_template
        self._multi_label = multi_label
        self._forms = Forms(FormSettings(predicate=_STATEMENT), classifier.engine.model, classifier.config.model)
        self._sets: OrderedDict[_Labels, LoadedPrompts] = OrderedDict()
        self._turn_lock = threading.Lock()

    def __call__(
        self,
        sequences: Any,
        candidate_labels: str | Sequence[str] | None = None,
        *,
        hypothesis_template: str | None = None,
        multi_label: bool | None = None,
        batch_size: int | None = None,
    ) -> Any:
        """Label a text, a list of texts, or the texts of an iterator, one by one.

        candidate_labels: a list, or a text with commas between them. hypothesis_template: a sentence about the text
        with `{}` for a label. multi_label: if true, the model is asked for each label whether the sentence with it is
        true, so that several labels or none may be probable; if false, which label completes the sentence, and the
        scores sum to 1. A single label is always asked the first way. Texts that are too long are cut, as in
        transformers. Raises ConfigError, and what Classifier.classify_batch raises.
        """
        found = self._candidates if candidate_labels is None else candidate_labels
        template = self._template if hypothesis_template is None else hypothesis_template
        candidates = _candidates(found)
        _check_template(template, candidates)
        multi_label = self._multi_label if multi_label is None else multi_label
        labels = _Labels(candidates, template, multi_label or len(candidates) == 1)

        def ask(texts: list[str]) -> list[Any]:
            with self._turn_lock:  # no other call may close a set while it is asked
                self._check_open()
                loaded = self._loaded(labels)
                cut = [self._cut(loaded, text) for text in texts]
                results = loaded.classify_batch(cut)
            return [_answer(text, labels, result.results) for text, result in zip(texts, results, strict=True)]

        return self._answers(sequences, ask, batch_size)

    @property
    def n_kept(self) -> int:
        """How many prompt sets are kept for calls with the same labels."""
        return len(self._sets)

    def _loaded(self, labels: _Labels) -> LoadedPrompts:
        if labels in self._sets:
            self._sets.move_to_end(labels)
            return self._sets[labels]
        compiled = self._compiled(labels)
        while len(self._sets) >= _MOST_SETS:
            self._evict_oldest()
        while True:
            try:
                self._sets[labels] = self.classifier.prompt_set(compiled)
                return self._sets[labels]
            except PlanError:  # no room in the cache
                if not self._sets:
                    raise
                self._evict_oldest()

    def _evict_oldest(self) -> None:
        self._sets.popitem(last=False)[1].close()

    def _compiled(self, labels: _Labels) -> PromptSet:
        if not labels.multi_label:
            sentence = labels.template.format("…")
            question = Question.of("choice", f"{_CHOICE}\n{sentence}", [(label, None) for label in labels.candidates])
            return compile_question(question, self._forms, self.classifier)
        statements = [labels.template.format(label) for label in labels.candidates]

        def prompts(quote: Callable[[str], str]) -> list[PromptConfig]:
            texts = [self._forms.text("predicate", quote(statement), "") for statement in statements]
            pairs = zip(labels.candidates, texts, strict=True)
            return [PromptConfig(name=label, prompt_template=text, labels=(_YES, _NO)) for label, text in pairs]

        return compile_quoted(statements, prompts, self.classifier)

    def _free(self) -> None:
        with self._turn_lock:
            while self._sets:
                self._evict_oldest()


def _answer(text: str, labels: _Labels, results: Sequence[PromptResult]) -> JsonObject:
    if labels.multi_label:
        scores = [result.scores[0].probability for result in results]
    else:
        scores = [score.probability for score in results[0].scores]
    ranked = sorted(zip(labels.candidates, scores, strict=True), key=lambda pair: pair[1], reverse=True)
    return {"sequence": text, "labels": [label for label, _ in ranked], "scores": [score for _, score in ranked]}


def _candidates(labels: Any) -> tuple[str, ...]:
    if isinstance(labels, str):
        labels = [label.strip() for label in labels.split(",") if label.strip()]
    if not isinstance(labels, list | tuple) or not labels:
        what = f"expected labels, got {kind_of(labels)}" if labels else "there are none"
        raise ConfigError(f"candidate_labels: {what}: give a list, or a text with commas between them")
    for label in labels:
        if not isinstance(label, str) or not label.strip():
            raise ConfigError(f"candidate_labels: {shown(label)} is no text of a label")
    if len(set(labels)) < len(labels):
        raise ConfigError(f"candidate_labels: a label stands there twice: {', '.join(map(shown, labels[:20]))}")
    return tuple(labels)


def _check_template(template: Any, candidates: tuple[str, ...]) -> None:
    try:
        if isinstance(template, str) and template.format(candidates[0]) != template:
            return
    except (KeyError, IndexError, ValueError, AttributeError):
        pass
    raise ConfigError(f"hypothesis_template: {shown(template)} has no {{}} where the label goes, or others beside it")
