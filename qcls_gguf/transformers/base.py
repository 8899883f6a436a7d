"""The common part of both callables: batching inputs, returning answers in the input's form, cutting texts, closing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Self

from ..classifier import Classifier
from ..config.words import kind_of, shown
from ..core.handle import LoadedPrompts
from ..data.encoding import is_text
from ..errors import ConfigError, DecodeError, PlanError

_BATCH = 64
"""Texts of a list that are asked in one request; the classifier decides how many of them share a decode."""
_UNCUT = (None, False, "do_not_truncate")


class TextPipeline(ABC):
    """A callable on a classifier. Several threads may use it."""

    def __init__(self, classifier: Classifier, *, owned: bool, batch_size: int | None = None) -> None:
        """owned: whether `close` closes the classifier; batch_size: the default of calls."""
        self.classifier = classifier
        self._owned = owned
        self._is_closed = False
        check_count("batch_size", batch_size)
        self._batch_size = batch_size

    def _cut(self, loaded: LoadedPrompts, text: str, *, truncation: Any = True, max_length: int | None = None) -> str:
        """The text, or a beginning of it that has no more tokens than runtime.max_query_tokens and max_length.

        truncation: transformers' own values. Raises PlanError for a text that is invalid at any length.
        """
        if truncation in _UNCUT:
            return text
        model = self.classifier.engine.model

        def fits(n: int) -> bool:
            try:
                loaded.check(text[:n])
            except PlanError:
                return False
            return max_length is None or len(model.tokenize(text[:n], parse_special=False)) <= max_length

        if fits(len(text)):
            return text
        if not is_text(text):
            loaded.check(text)  # says what is wrong
        fitting, too_long = 0, len(text)
        while too_long - fitting > 1:
            middle = (fitting + too_long) // 2
            fitting, too_long = (middle, too_long) if fits(middle) else (fitting, middle)
        return text[:fitting]

    @abstractmethod
    def _free(self) -> None:
        """Close the prompt sets that it holds."""

    def close(self) -> None:
        """Close its prompt sets, and the classifier if it was opened for this. May be called again."""
        self._is_closed = True
        self._free()
        if self._owned:
            self.classifier.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise DecodeError("this pipeline is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answers(self, inputs: Any, ask: Callable[[list[str]], list[Any]], batch_size: int | None) -> Any:
        """The answer to one text; a list of answers to a list; an iterator of answers to any other iterable.

        ask(texts) is called with at most batch_size texts; the default is 1 for an iterable that is not a list.
        """
        self._check_open()
        check_count("batch_size", batch_size)
        size = batch_size or self._batch_size
        if isinstance(inputs, str | Mapping):
            return ask([_text(inputs)])[0]
        if isinstance(inputs, list):
            return list(_in_batches([_text(each) for each in inputs], ask, size or _BATCH))
        if isinstance(inputs, tuple | bytes) or not isinstance(inputs, Iterable):
            raise ConfigError(
                f"inputs: {shown(inputs)} is {kind_of(inputs)}: give a text, a list or an iterator of them"
            )
        return _in_batches(map(_text, inputs), ask, size or 1)


def _in_batches(texts: Iterable[str], ask: Callable[[list[str]], Sequence[Any]], size: int) -> Iterator[Any]:
    waiting = iter(texts)
    while batch := list(islice(waiting, size)):
        yield from ask(batch)


def _text(value: Any) -> str:
    """A text, or the text of `{"text": …}`. Raises ConfigError."""
    if isinstance(value, Mapping):
        if set(value) - {"text"}:
            raise ConfigError(f"inputs: {shown(dict(value))}: pairs of texts are not labelled: give text alone")
        value = value.get("text")
    if not isinstance(value, str):
        raise ConfigError(f"inputs: {shown(value)} is {kind_of(value)}, not text")
    return value


def check_count(name: str, value: Any, none: str = "") -> None:
    """Raise ConfigError for an argument that is neither None nor a whole number of 1 or more. none: what None means."""
    if value is not None and (not isinstance(value, int) or value < 1):
        raise ConfigError(f"{name}: {shown(value)} is not a whole number of 1 or more{none}")
