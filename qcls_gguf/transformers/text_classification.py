"""The counterpart of `pipeline("text-classification")`: labels texts by one configured prompt."""

from __future__ import annotations

from typing import Any, Final

from ..classifier import Classifier
from ..config.words import shown
from ..errors import ConfigError
from ..opening import with_one_prompt
from ..score.result import PromptResult
from .base import TextPipeline, check_count

NOT_GIVEN: Final = object()
_FUNCTIONS = {None: "probability", "default": "probability", "softmax": "probability", "none": "score"}


class TextClassificationPipeline(TextPipeline):
    """Labels texts by one prompt; the answers are `{"label": …, "score": …}`, most probable first."""

    task = "text-classification"

    def __init__(
        self,
        classifier: Classifier,
        prompt: str | None = None,
        *,
        owned: bool = False,
        top_k: Any = NOT_GIVEN,
        function_to_apply: str | None = None,
        batch_size: int | None = None,
    ) -> None:
        """prompt: the name of one of the classifier's prompts; None: its only one. The others are defaults of calls.

        Raises ConfigError.
        """
        super().__init__(classifier, owned=owned, batch_size=batch_size)
        config = with_one_prompt(classifier.config, prompt)
        self._top_k = _checked_top_k(top_k)
        self._function = _checked_function(function_to_apply)
        is_whole = len(config.prompts) == len(classifier.config.prompts)
        self._loaded = classifier.configured if is_whole else classifier.prompt_set(config)

    def __call__(
        self,
        inputs: Any,
        *,
        top_k: Any = NOT_GIVEN,
        function_to_apply: str | None = None,
        batch_size: int | None = None,
        truncation: bool | str | None = None,
        max_length: int | None = None,
        padding: Any = None,
    ) -> Any:
        """Label a text, a list of texts, or the texts of an iterator, one by one.

        top_k: the number of labels, None for all. Without it a text's answer is a dict, with it a list of dicts; as in
        transformers, the answer to a single text is in a list of its own unless the call itself gives top_k.
        function_to_apply: `none` for raw scores instead of probabilities. truncation: cut texts that are too long (to
        max_length tokens of the model, if given) instead of refusing them. padding: ignored.
        Raises ConfigError, and what Classifier.classify_batch raises.
        """
        check_count("max_length", max_length)
        n_labels = self._top_k if top_k is NOT_GIVEN else _checked_top_k(top_k)
        field = self._function if function_to_apply is None else _checked_function(function_to_apply)

        def ask(texts: list[str]) -> list[Any]:
            cut = [self._cut(self._loaded, text, truncation=truncation, max_length=max_length) for text in texts]
            results = self._loaded.classify_batch(cut)
            return [_answer(result.results[0], n_labels, field) for result in results]

        answers = self._answers(inputs, ask, batch_size)
        return [answers] if isinstance(inputs, str) and top_k is NOT_GIVEN else answers

    def _free(self) -> None:
        self._loaded.close()


def _answer(result: PromptResult, n_labels: Any, field: str) -> Any:
    scores = sorted(result.scores, key=lambda score: score.probability, reverse=True)
    answers = [{"label": score.label, "score": getattr(score, field)} for score in scores]
    return answers[0] if n_labels is NOT_GIVEN else answers[:n_labels]


def _checked_top_k(top_k: Any) -> Any:
    if top_k is not NOT_GIVEN:
        check_count("top_k", top_k, ", or None for all labels")
    return top_k


def _checked_function(function: str | None) -> str:
    if function not in _FUNCTIONS:
        raise ConfigError(f"function_to_apply: {shown(function)} is not softmax, default or none")
    return _FUNCTIONS[function]
