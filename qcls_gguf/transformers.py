"""Callables with the interface of transformers' pipelines, computed by this package.

pipe = pipeline("text-classification", "fashion-8", prompt="category")
pipe = pipeline("zero-shot-classification", "user/repo-GGUF:Q4_K_M")
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self

from .classifier import Classifier
from .config.load import load_config
from .config.prompt import PromptConfig
from .config.resources import DEFAULT_CONFIG, OLLAMA, PACKAGE, config_names
from .config.schema import Config, ModelConfig, RuntimeConfig
from .config.words import JsonObject, kind_of, shown
from .core.handle import LoadedPrompts
from .data.encoding import is_text
from .errors import ConfigError, DecodeError, PlanError
from .opening import with_one_prompt
from .prompts.prompt_set import PromptSet
from .questions.forms import INSTRUCTIONS, Form, Forms, FormSettings
from .questions.question import Question, compile_question, compile_quoted
from .score.result import PromptResult

__all__ = ["TextClassificationPipeline", "ZeroShotClassificationPipeline", "pipeline"]

HYPOTHESIS = "This example is {}."
_TEXT, _ZERO_SHOT = "text-classification", "zero-shot-classification"
_TASKS = (_TEXT, "sentiment-analysis", _ZERO_SHOT)
"""the second is transformers' other name of the first"""
_PROBABILITIES = {None: True, "default": True, "softmax": True, "none": False}
"""whether answers to calls with this function_to_apply have probabilities, or raw scores"""
_ABSENT: Any = object()
_BATCH = 64
"""Texts of a list that are asked in one request; the classifier decides how many of them share a decode."""
_MOST_SETS = 16
_YES, _NO = "yes", "no"
# The text precedes the statement, so that it is computed once for all labels.
_STATEMENT = Form(
    system="Read the text, and say whether the statement about it is true. Answer with exactly yes or no.",
    user=f"Text: {{query}}\nStatement: {INSTRUCTIONS}",
)
_CHOICE = "Which option completes this sentence about the text best?"
_FIRST = PromptConfig(name="text", prompt_template="Text: {query}\nanswer:", labels=("yes", "no"))
"""An engine needs a prompt to be opened with; this one is never asked."""
_ROOM = RuntimeConfig(n_batch=1024, max_batch=64, question_cells=2048)
"""Room for labels that are not known yet: long prompts, many labels, and 16 sets of them."""


def pipeline(
    task: str, model: str | Path | Config | ModelConfig | Classifier | None = None, **parameters: Any
) -> TextClassificationPipeline | ZeroShotClassificationPipeline:
    """A callable with the interface of transformers' `text-classification` or `zero-shot-classification` pipeline.

    model: an open Classifier, which stays open; or a configuration, as for Classifier.from_config; for zero-shot
    classification also a model alone: a ModelConfig, a GGUF file, `ollama:NAME`, or `user/repo:quantization` of the
    Hugging Face hub. None: the embedded model. parameters: `prompt`, the configuration's prompt that labels the texts;
    and defaults for the arguments of calls, see the classes. Raises ConfigError or ModelError.
    """
    if task not in _TASKS:
        raise ConfigError(f"task: {shown(task)} is not {_TEXT} or {_ZERO_SHOT}")
    kind = ZeroShotClassificationPipeline if task == _ZERO_SHOT else TextClassificationPipeline
    if isinstance(model, Classifier):
        return kind(model, **parameters)
    if task == _ZERO_SHOT:
        config = _config_for_any_labels(model)
    elif isinstance(model, ModelConfig):
        raise ConfigError(f"model: {_TEXT} needs prompts: give a configuration that has some")
    else:
        config = with_one_prompt(DEFAULT_CONFIG if model is None else model, parameters.pop("prompt", None))
    classifier = Classifier.from_config(config)
    try:
        return kind(classifier, owned=True, **parameters)
    except BaseException:
        classifier.close()
        raise


def _config_for_any_labels(model: str | Path | Config | ModelConfig | None) -> Config:
    """The named configuration, or one with the named model."""
    if isinstance(model, Config):
        return model
    if not isinstance(model, ModelConfig | None):
        name = str(model)
        if name in config_names() or Path(name).suffix in (".yaml", ".yml"):
            return load_config(name)
        is_file = Path(name).suffix == ".gguf" or name.startswith((OLLAMA, PACKAGE)) or Path(name).exists()
        model = ModelConfig(path=Path(name)) if is_file else ModelConfig(hf_repo=name)
    return Config(model=model or ModelConfig(), prompts=(_FIRST,), runtime=_ROOM)


class _Pipeline:
    """What both have in common: texts are asked in batches, the answers have the form of what was given."""

    def __init__(self, classifier: Classifier, owned: bool, batch_size: int | None) -> None:
        self.classifier = classifier
        self._owned = owned
        self._is_closed = False
        self._batch_size = _checked_count("batch_size", batch_size)

    def _answers(self, given: Any, ask: Callable[[list[str]], list[Any]], batch_size: int | None) -> Any:
        """The answer to a text, a list of answers to a list, an iterator of answers to an iterator."""
        self._check_open()
        size = _checked_count("batch_size", batch_size) or self._batch_size
        if isinstance(given, str | Mapping):
            return ask([_text(given)])[0]
        if isinstance(given, list):
            return list(_in_batches([_text(each) for each in given], ask, size or _BATCH))
        if isinstance(given, tuple | bytes) or not isinstance(given, Iterable):
            raise ConfigError(f"inputs: {shown(given)} is {kind_of(given)}: give a text, a list or an iterator of them")
        return _in_batches(map(_text, given), ask, size or 1)

    def _check_open(self) -> None:
        if self._is_closed:
            raise DecodeError("this pipeline is closed")

    def _free(self) -> None:
        """Close its prompt sets."""
        raise NotImplementedError

    def close(self) -> None:
        """Close its prompt sets, and the classifier if it was opened for this. May be called again."""
        self._is_closed = True
        self._free()
        if self._owned:
            self.classifier.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _in_batches(texts: Iterable[str], ask: Callable[[list[str]], list[Any]], size: int) -> Iterator[Any]:
    waiting = iter(texts)
    while batch := list(islice(waiting, size)):
        yield from ask(batch)


class TextClassificationPipeline(_Pipeline):
    """Labels texts by one configured prompt; the answers are `{"label", "score"}`, the most probable first."""

    task = _TEXT

    def __init__(
        self,
        classifier: Classifier,
        prompt: str | None = None,
        *,
        owned: bool = False,
        top_k: int | None = _ABSENT,
        function_to_apply: str | None = None,
        batch_size: int | None = None,
    ) -> None:
        """prompt: the name of one of the classifier's prompts; None: its only one. owned: whether `close` closes the
        classifier. The others are defaults of calls. Raises ConfigError.
        """
        super().__init__(classifier, owned, batch_size)
        config = with_one_prompt(classifier.config, prompt)
        self._top_k, self._function = top_k, function_to_apply
        is_whole = len(config.prompts) == len(classifier.config.prompts)
        self._loaded = classifier.configured if is_whole else classifier.prompt_set(config)

    def __call__(
        self,
        inputs: Any,
        *,
        top_k: int | None = _ABSENT,
        function_to_apply: str | None = None,
        batch_size: int | None = None,
        truncation: bool | str | None = None,
        max_length: int | None = None,
        padding: Any = None,
    ) -> Any:
        """Label a text, a list of texts, or the texts of an iterator, one by one.

        top_k: the number of labels, None for all. Without it a text's answer is a dict, with it a list of dicts; as in
        transformers, the answer to a single text is in a list of its own unless the call itself gives top_k.
        function_to_apply: `none` for raw scores instead of probabilities. truncation: cut texts that are too long, to
        max_length tokens of the model if given, instead of refusing them. padding: ignored. Raises ConfigError, and
        what Classifier.classify_batch raises.
        """
        n_labels = self._top_k if top_k is _ABSENT else top_k
        if n_labels is not _ABSENT:
            _checked_count("top_k", n_labels)
        _checked_count("max_length", max_length)
        function = self._function if function_to_apply is None else function_to_apply
        if function not in _PROBABILITIES:
            raise ConfigError(f"function_to_apply: {shown(function)} is not softmax, default or none")
        is_cut = truncation not in (None, False, "do_not_truncate")

        def answer(result: PromptResult) -> Any:
            scores = sorted(result.scores, key=lambda score: score.probability, reverse=True)
            values = [score.probability if _PROBABILITIES[function] else score.score for score in scores]
            found = [{"label": score.label, "score": value} for score, value in zip(scores, values, strict=True)]
            return found[0] if n_labels is _ABSENT else found[:n_labels]

        def ask(texts: list[str]) -> list[Any]:
            asked = [_cut(self._loaded, text, self.classifier, max_length) for text in texts] if is_cut else texts
            return [answer(result.results[0]) for result in self._loaded.classify_batch(asked)]

        answers = self._answers(inputs, ask, batch_size)
        return [answers] if isinstance(inputs, str) and top_k is _ABSENT else answers

    def _free(self) -> None:
        self._loaded.close()


class _Labels(NamedTuple):
    """The arguments that determine a prompt set."""

    candidates: tuple[str, ...]
    template: str
    multi_label: bool


class ZeroShotClassificationPipeline(_Pipeline):
    """Labels texts by labels that come with the call; the answers are `{"sequence", "labels", "scores"}`.

    The labels become a prompt set on the classifier. The last 16 sets, or as many as the cache has room for, are kept
    for calls with the same labels. Several threads may use it.
    """

    task = _ZERO_SHOT

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
        """owned: whether `close` closes the classifier; the others are defaults of calls."""
        super().__init__(classifier, owned, batch_size)
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
        scores sum to 1. A single label is always asked the first way. batch_size: texts of one request; the default is
        64 for a list, 1 for an iterator. Texts that are too long are cut, as in transformers. Raises ConfigError, and
        what Classifier.classify_batch raises.
        """
        found = self._candidates if candidate_labels is None else candidate_labels
        template = self._template if hypothesis_template is None else hypothesis_template
        candidates = _candidates(found)
        _check_template(template, candidates)
        multi_label = self._multi_label if multi_label is None else multi_label
        labels = _Labels(candidates, template, multi_label or len(candidates) == 1)
        return self._answers(sequences, partial(self._ask, labels), batch_size)

    @property
    def n_kept(self) -> int:
        """How many prompt sets are kept for calls with the same labels."""
        return len(self._sets)

    def _free(self) -> None:
        with self._turn_lock:
            while self._sets:
                self._evict_oldest()

    def _ask(self, labels: _Labels, texts: list[str]) -> list[JsonObject]:
        with self._turn_lock:  # no other call may close a set while it is asked
            self._check_open()
            loaded = self._loaded(labels)
            results = loaded.classify_batch([_cut(loaded, text, self.classifier) for text in texts])
        return [_answer(text, labels, result.results) for text, result in zip(texts, results, strict=True)]

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


def _cut(loaded: LoadedPrompts, text: str, classifier: Classifier, max_length: int | None = None) -> str:
    """The text, or the longest beginning of it that is not refused and has no more than max_length tokens.

    Raises PlanError for one that is no valid text.
    """
    tokenize = classifier.engine.model.tokenize

    def fits(n: int) -> bool:
        try:
            loaded.check(text[:n])
        except PlanError:
            return False
        return max_length is None or len(tokenize(text[:n], parse_special=False)) <= max_length

    if fits(len(text)):
        return text
    if not is_text(text):
        loaded.check(text)  # says what is wrong
    fitting, too_long = 0, len(text)
    while too_long - fitting > 1:
        middle = (fitting + too_long) // 2
        fitting, too_long = (middle, too_long) if fits(middle) else (fitting, middle)
    return text[:fitting]


def _text(value: Any) -> str:
    """A text, or the text of `{"text": …}`. Raises ConfigError."""
    if isinstance(value, Mapping):
        if set(value) - {"text"}:
            raise ConfigError(f"inputs: {shown(dict(value))}: pairs of texts are not labelled: give text alone")
        value = value.get("text")
    if not isinstance(value, str):
        raise ConfigError(f"inputs: {shown(value)} is {kind_of(value)}, not text")
    return value


def _checked_count(name: str, value: Any) -> int | None:
    if value is not None and (not isinstance(value, int) or value < 1):
        raise ConfigError(f"{name}: {shown(value)} is not a whole number of 1 or more, or None")
    return value


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
