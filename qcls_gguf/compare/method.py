"""The interface of a method of labelling, and the workload that every method is given."""

from __future__ import annotations

import importlib.metadata
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import ClassVar

from ..classifier import Classifier
from ..config.schema import RuntimeConfig
from ..errors import QclsError
from ..model.placement import flash_attention
from ..prompts.compiled import Prompt
from .reader import LabelReader


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """Version by package, of those that are installed."""
    versions = {}
    for name in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


class AbsentError(QclsError):
    """A method cannot run here; the message says why, and what to do."""


class PeerError(QclsError):
    """A method failed while it ran."""


class DiedError(PeerError):
    """The process of a method ended by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A method's answer for one prompt; the labels are in the order of the configuration."""

    label: str | None
    """the winner; None where the method cannot tell"""
    tree: tuple[float, ...] | None = None
    """log-probabilities among the labels, as `tree` scores them; None where the method does not see every choice"""
    joint: tuple[float | None, ...] = ()
    """log p(label | prompt) over the whole vocabulary; None for a label if the method does not read all its tokens"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPrompt:
    """One prompt: its text, its tokens, and how its labels are read from logits."""

    template: str
    label_prefix: str
    compiled: Prompt
    reader: LabelReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What every method is given: the prompts, the queries, the model and the settings."""

    classifier: Classifier
    """ours; methods that call this package's library directly share its model"""
    prompts: tuple[WorkloadPrompt, ...]
    queries: tuple[str, ...]
    model_path: Path
    runtime: RuntimeConfig
    n_threads: int
    n_gpu_layers: int
    n_longest: int
    """tokens of the longest rendered prompt with its longest label"""

    @property
    def flash_attn(self) -> bool | None:
        """Whether our own context computes flash attention; None leaves it to llama.cpp."""
        return flash_attention(self.runtime, self.n_gpu_layers)

    def tokens(self, prompt: Prompt, query: str) -> tuple[int, list[int]]:
        """(n_cached, new tokens) of a prompt with a query in it: how many tokens of its prefix stay, what follows."""
        model = self.classifier.engine.model
        return prompt.new_tokens(model.tokenize(prompt.before + query + prompt.after, parse_special=False).tolist())


class Method(ABC):
    """One method of labelling a query by all prompts. `start` and `close` are not timed, `classify` is."""

    name: ClassVar[str]
    about: ClassVar[str]
    """what it does for a request"""
    own_tokenizer: ClassVar[bool] = True
    """whether it makes a query's tokens itself, and does not ask the workload for ours"""
    comparable = True
    """whether it computes with the same weights, so that its answers can be compared with ours"""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload

    def start(self) -> None:  # noqa: B027  most methods have something to start, ours has not
        """Load and cache what requests will need. Raises AbsentError."""

    @abstractmethod
    def classify(self, query: str) -> list[Answer]:
        """An answer for each prompt. This is what is timed, so it computes the winners and nothing more."""

    def timed(self, query: str) -> float:
        """Milliseconds that `classify` takes."""
        before = perf_counter_ns()
        self.classify(query)
        return (perf_counter_ns() - before) / 1e6

    def audit(self, query: str) -> list[Answer]:
        """The same with every log-probability that the method can give; not timed."""
        return self.classify(query)

    def check_answers(self) -> None:  # noqa: B027
        """Called when every query was answered. Raises PeerError where the answers together show a failure."""

    def remarks(self) -> list[str]:
        """What a reader of its figures should know, found while it ran."""
        return []

    def close(self) -> None:  # noqa: B027
        """Free everything; may be called again, and after a failed start."""
