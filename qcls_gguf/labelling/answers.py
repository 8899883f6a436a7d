"""Answers in columns: what is kept of each distinct query's, and the columns that rows get."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..config.prompt import PromptConfig
from ..score.result import Result
from .blocks import Queries

Float64Array = npt.NDArray[np.float64]
_ERROR, PROBABILITY, _SCORES = "error", "_probability", "_scores"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerColumns:
    """Which columns rows get."""

    prompts: tuple[PromptConfig, ...]
    """those that answer"""
    prefix: str = ""
    """before the name of each"""
    scores: bool = False
    """also every label's probability"""
    top_k: int | None = None
    """also so many labels with their probabilities, the most probable first"""

    @property
    def n_labels(self) -> int:
        """Of all prompts."""
        return sum(len(prompt.labels) for prompt in self.prompts)

    @property
    def keeps_scores(self) -> bool:
        """Whether every label's probability is needed."""
        return self.scores or self.top_k is not None

    def schema(self) -> pa.Schema:
        """The columns and their types."""
        fields = []
        for prompt in self.prompts:
            name = f"{self.prefix}{prompt.name}"
            fields += [pa.field(name, pa.string()), pa.field(f"{name}{PROBABILITY}", pa.float64())]
            if self.keeps_scores:
                fields.append(pa.field(f"{name}{_SCORES}", self._scores_type(prompt)))
        return pa.schema([*fields, pa.field(f"{self.prefix}{_ERROR}", pa.string())])

    def _scores_type(self, prompt: PromptConfig) -> pa.DataType:
        if self.top_k is not None:
            return pa.list_(pa.struct([("label", pa.string()), ("probability", pa.float64())]))
        return pa.struct([(label, pa.float64()) for label in prompt.labels])


@dataclass(frozen=True, slots=True)
class Answer:
    """What is kept of a result."""

    probabilities: Float64Array
    """(n_labels,) of every label, prompt by prompt"""
    abstained: Sequence[bool]
    """prompt by prompt"""


def answer_of(result: Result) -> Answer:
    """What is kept of a result."""
    probabilities = [score.probability for answer in result.results for score in answer.scores]
    return Answer(np.array(probabilities), [answer.abstained for answer in result.results])


class Answers:
    """The answers to distinct queries, filled one by one."""

    def __init__(self, columns: AnswerColumns, n: int) -> None:
        self.columns = columns
        shape = n, len(columns.prompts)
        self.label = np.full(shape, -1, np.int32)
        """(n, n_prompts) by number, the fallback after all labels; -1: no answer"""
        self.probability = np.full(shape, np.nan)
        """(n, n_prompts) of the most probable label"""
        self.scores = np.full((n, columns.n_labels if columns.keeps_scores else 0), np.nan)
        """(n, n_labels) every label's probability, prompt by prompt; (n, 0) where no column needs them"""
        self.reasons: dict[int, str] = {}
        """why a query has no answer"""

    def put(self, place: int, answer: Answer | str) -> None:
        """Keep the answer to a query, or the reason why it has none."""
        if isinstance(answer, str):
            self.reasons[place] = answer
            return
        start = 0
        for number, prompt in enumerate(self.columns.prompts):
            own = answer.probabilities[start : start + len(prompt.labels)]
            start += len(own)
            best = int(own.argmax())  # the first of equally probable ones, as in a Result
            self.label[place, number] = len(own) if answer.abstained[number] else best
            self.probability[place, number] = own[best]
        if self.columns.keeps_scores:
            self.scores[place] = answer.probabilities

    def table(self, queries: Queries) -> pa.Table:
        """The columns that the rows get."""
        index = queries.index
        arrays = list(self._arrays())
        if queries.texts:
            place = pa.array(np.maximum(index, 0), mask=index < 0)
            arrays = [each.take(place) for each in arrays]
        else:  # there is nothing to take from
            arrays = [pa.nulls(len(index), each.type) for each in arrays]
        reasons = [queries.reasons.get(row) for row in range(len(index))]
        if self.reasons:
            for row in np.flatnonzero(np.isin(index, list(self.reasons))).tolist():
                reasons[row] = f"{queries.name(row)}: {self.reasons[int(index[row])]}"
        return pa.table([*arrays, pa.array(reasons, pa.string())], schema=self.columns.schema())

    def _arrays(self) -> Iterator[pa.Array]:
        """Of the distinct queries, in the order of the schema, without the reasons."""
        start = 0
        for number, prompt in enumerate(self.columns.prompts):
            names = pa.array([*prompt.labels, prompt.fallback or ""], pa.string())
            label, none = self.label[:, number], self.label[:, number] < 0
            yield names.take(pa.array(label, mask=none))
            yield pa.array(self.probability[:, number], mask=none)
            if self.columns.keeps_scores:
                own = self.scores[:, start : start + len(prompt.labels)]
                top_k = self.columns.top_k
                yield _top(own, prompt.labels, top_k, none) if top_k else _struct(own, prompt.labels, none)
            start += len(prompt.labels)


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
    return pc.if_else(pa.array(none), pa.scalar(None, lists.type), lists)


def with_columns(table: pa.Table, added: pa.Table) -> pa.Table:
    """A table with the columns of another one of as many rows after its own."""
    for field, column in zip(added.schema, added.columns, strict=True):
        table = table.append_column(field, column)
    return table
