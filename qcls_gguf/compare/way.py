"""What a way of labelling is to the comparison, and what every way is given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ..classifier import Classifier
from ..config.schema import RuntimeConfig
from ..engine.capacity import flash_attention
from ..errors import QclsError
from ..prompts.compiled import Prompt
from .reader import LabelReader


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """The versions of those that are installed."""
    import importlib.metadata  # takes long, and only some commands ask

    found = {}
    for name in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


class AbsentError(QclsError):
    """A way cannot be had here; the message says why, and how to have it."""


class PeerError(QclsError):
    """A way that ran has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a way says of one prompt; the labels are in the order of the configuration."""

    label: str | None
    """the winner; none where the way cannot tell"""
    tree: tuple[float, ...] | None = None
    """log-probabilities among the labels, as `tree` scores them; none where the way does not see every choice"""
    joint: tuple[float | None, ...] = ()
    """log p(label | prompt) over the whole vocabulary, for the labels whose every token the way reads"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPrompt:
    """A prompt as the ways need it: the text, the compiled tokens, and what its labels' scores read."""

    template: str
    label_prefix: str
    compiled: Prompt
    reader: LabelReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What all ways label, with which model and settings."""

    classifier: Classifier
    """ours; its model is shared by the ways that use this package's library directly"""
    prompts: tuple[TaskPrompt, ...]
    queries: tuple[str, ...]
    model_path: Path
    runtime: RuntimeConfig
    n_threads: int
    n_gpu_layers: int
    n_longest: int
    """tokens of the longest rendered prompt with its longest label"""

    @property
    def flash_attn(self) -> bool | None:
        """What our own context has, as a context takes it: none is llama.cpp's own choice."""
        return flash_attention(self.runtime, self.n_gpu_layers)

    def tokens(self, prompt: Prompt, query: str) -> tuple[int, list[int]]:
        """(tokens of the prefix that stay, tokens behind them) of a prompt rendered with a query."""
        model = self.classifier.parts.engine.model
        return prompt.new_tokens(model.tokenize(prompt.before + query + prompt.after, parse_special=False).tolist())


class Way(ABC):
    """One way of labelling a query by all prompts. `start` and `close` are not timed, `classify` is."""

    name: ClassVar[str]
    about: ClassVar[str]
    """what it does for a request, in a few words"""
    comparable = True
    """whether its answers are of the same weights"""

    def __init__(self, task: Task) -> None:
        self.task = task

    def start(self) -> None:  # noqa: B027  most ways have something to start, ours has not
        """Load and cache what requests will need. Raises AbsentError."""

    @abstractmethod
    def classify(self, query: str) -> list[Answer]:
        """An answer a prompt, with no more work than its winners and probabilities among the labels need."""

    def audit(self, query: str) -> list[Answer]:
        """The same with every log-probability that the way can give."""
        return self.classify(query)

    def remarks(self) -> list[str]:
        """What was found while it ran that a reader of its numbers should know."""
        return []

    def close(self) -> None:  # noqa: B027
        """Free everything; may be called again, and after a failed start."""
