"""Answers in columns: what is kept of each distinct query's, and the columns that rows get."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..loaded_prompts import Answering
from ..score.result import Result
from .blocks import Queries

Float64Array = npt.NDArray[np.float64]
ERROR = "error"
PROBABILITY, SCORES = "_probability", "_scores"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLabels:
    """A prompt's name, its labels, and what it answers where it abstains."""

    name: str
    labels: tuple[str, ...]
    fallback: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerColumns:
    """Which columns rows get."""

    prompts: tuple[PromptLabels, ...]
    prefix: str = ""
    """before the name of each"""
    scores: bool = False
    """every label's probability, too"""
    top_k: int | None = None
    """only of so many labels, the most probable first"""

    @property
    def n_labels(self) -> int:
        """Of all prompts."""
        return sum(len(prompt.labels) for prompt in self.prompts)

    @property
    def keeps_scores(self) -> bool:
        return self.scores or self.top_k is not None

    def schema(self) -> pa.Schema:
        """The columns and their types."""
        fields = []
        for prompt in self.prompts:
            name = f"{self.prefix}{prompt.name}"
            fields += [pa.field(name, pa.string()), pa.field(f"{name}{PROBABILITY}", pa.float64())]
            if self.keeps_scores:
                fields.append(pa.field(f"{name}{SCORES}", self._scores_type(prompt)))
        return pa.schema([*fields, pa.field(f"{self.prefix}{ERROR}", pa.string())])

    def _scores_type(self, prompt: PromptLabels) -> pa.DataType:
        if self.top_k is not None:
            return pa.list_(pa.struct([("label", pa.string()), ("probability", pa.float64())]))
        return pa.struct([(label, pa.float64()) for label in prompt.labels])


def prompt_labels(prompts: Answering) -> tuple[PromptLabels, ...]:
    """Of the prompts that answer."""
    return tuple(
        PromptLabels(name=prompt.name, labels=tuple(prompt.labels), fallback=setting.fallback)
        for prompt, setting in zip(prompts.prompts, prompts.active.prompts.settings, strict=True)
    )


class Answers:
    """The answers to distinct queries, of each prompt; filled one by one."""

    def __init__(self, prompts: Sequence[PromptLabels], n: int, *, keeps_scores: bool) -> None:
        self.prompts = prompts
        self.label = np.full((n, len(prompts)), -1, np.int32)
        """(n, n_prompts) by number, that of the fallback behind all others; -1: no answer"""
        self.probability = np.full((n, len(prompts)), np.nan)
        """(n, n_prompts) of the most probable label"""
        self.scores: Float64Array | None = None
        """(n, n_labels) every label's probability, prompt by prompt; none where they are not kept"""
        if keeps_scores:
            self.scores = np.full((n, sum(len(prompt.labels) for prompt in prompts)), np.nan)
        self.reasons: dict[int, str] = {}
        """why a query has no answer"""

    def put(self, place: int, probabilities: Float64Array, abstained: Sequence[bool]) -> None:
        """probabilities: (n_labels,) of every label, prompt by prompt."""
        at = 0
        for number, prompt in enumerate(self.prompts):
            own = probabilities[at : at + len(prompt.labels)]
            at += len(own)
            best = int(own.argmax())  # the first of equally probable ones, as in a Result
            self.label[place, number] = len(own) if abstained[number] else best
            self.probability[place, number] = own[best]
        if self.scores is not None:
            self.scores[place] = probabilities


def probabilities_of(result: Result) -> tuple[Float64Array, list[bool]]:
    """What `Answers.put` takes."""
    found = [score.probability for answer in result.results for score in answer.scores]
    return np.array(found), [answer.abstained for answer in result.results]


def answer_table(columns: AnswerColumns, queries: Queries, answers: Answers) -> pa.Table:
    """The columns that the rows get."""
    index = queries.index
    place = pa.array(np.maximum(index, 0), mask=index < 0)
    arrays = list(_arrays(columns, answers))
    if not queries.texts:  # there is nothing to take from
        arrays = [pa.nulls(len(index), each.type) for each in arrays]
    else:
        arrays = [each.take(place) for each in arrays]
    reasons = dict(queries.reasons)
    if answers.reasons:
        for row, number in enumerate(index.tolist()):
            if number in answers.reasons:
                reasons[row] = f"{queries.name(row)}: {answers.reasons[number]}"
    arrays.append(pa.array([reasons.get(row) for row in range(len(index))] if reasons else [None] * len(index),
                           pa.string()))  # fmt: skip
    return pa.table(arrays, schema=columns.schema())


def _arrays(columns: AnswerColumns, answers: Answers) -> Iterator[pa.Array]:
    """Of the distinct queries, in the order of the schema, but for the reasons."""
    at = 0
    for number, prompt in enumerate(columns.prompts):
        names = pa.array([*prompt.labels, prompt.fallback or ""], pa.string())
        label, none = answers.label[:, number], answers.label[:, number] < 0
        yield names.take(pa.array(label, mask=none))
        yield pa.array(answers.probability[:, number], mask=none)
        if answers.scores is not None and columns.keeps_scores:
            own = answers.scores[:, at : at + len(prompt.labels)]
            yield _top(own, prompt.labels, columns.top_k, none) if columns.top_k else _struct(own, prompt.labels, none)
        at += len(prompt.labels)


def _struct(scores: Float64Array, labels: Sequence[str], none: npt.NDArray[np.bool_]) -> pa.Array:
    parts = [pa.array(scores[:, place]) for place in range(len(labels))]
    return pa.StructArray.from_arrays(parts, names=list(labels), mask=pa.array(none))


def _top(scores: Float64Array, labels: Sequence[str], k: int, none: npt.NDArray[np.bool_]) -> pa.Array:
    k = min(k, len(labels))
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    values = np.take_along_axis(scores, order, axis=1)
    parts = [pa.array(labels, pa.string()).take(pa.array(order.ravel())), pa.array(values.ravel())]
    pairs = pa.StructArray.from_arrays(parts, names=["label", "probability"])
    start = pa.array(np.arange(len(scores) + 1, dtype=np.int32) * k)
    lists = pa.ListArray.from_arrays(start, pairs)
    return pa.compute.if_else(pa.array(none), pa.scalar(None, lists.type), lists)
