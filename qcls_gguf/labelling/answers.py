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
            fields += [pa.field(name, pa.string()), pa.field(f"{name}_probability", pa.float64())]
            if self.keeps_scores:
                fields.append(pa.field(f"{name}_scores", self._scores_type(prompt)))
        return pa.schema([*fields, pa.field(f"{self.prefix}error", pa.string())])

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

    def failures(self, queries: Queries) -> dict[int, str]:
        """For each row whose query has no answer the reason."""
        rows = np.flatnonzero(np.isin(queries.index, list(self.reasons))).tolist() if self.reasons else []
        return {row: f"{queries.place(row)}: {self.reasons[int(queries.index[row])]}" for row in rows}

    def table(self, queries: Queries, digits: int | None = None) -> pa.Table:
        """The columns that the rows get; digits: of probabilities after the point, None: all."""
        index = queries.index
        arrays = list(self._arrays(digits))
        if queries.texts:
            place = pa.array(np.maximum(index, 0), mask=index < 0)
            arrays = [each.take(place) for each in arrays]
        else:  # there is nothing to take from
            arrays = [pa.nulls(len(index), each.type) for each in arrays]
        reasons = queries.reasons | self.failures(queries)
        errors = pa.array([reasons.get(row) for row in range(len(index))], pa.string())
        return pa.table([*arrays, errors], schema=self.columns.schema())

    def _arrays(self, digits: int | None) -> Iterator[pa.Array]:
        """Of the distinct queries, in the order of the schema, without the reasons."""
        probability, scores = self.probability, self.scores
        if digits is not None:
            probability, scores = probability.round(digits), scores.round(digits)
        start = 0
        for number, prompt in enumerate(self.columns.prompts):
            names = pa.array([*prompt.labels, prompt.fallback or ""], pa.string())
            label, none = self.label[:, number], pa.array(self.label[:, number] < 0)
            yield names.take(pa.array(label, mask=self.label[:, number] < 0))
            yield pc.if_else(none, None, pa.array(probability[:, number]))
            if self.columns.keeps_scores:
                own = scores[:, start : start + len(prompt.labels)]
                found = _top(own, prompt.labels, self.columns.top_k) if self.columns.top_k else _all(own, prompt.labels)
                yield pc.if_else(none, pa.scalar(None, found.type), found)
            start += len(prompt.labels)


def _all(scores: Float64Array, labels: Sequence[str]) -> pa.Array:
    return pa.StructArray.from_arrays([pa.array(each) for each in scores.T], names=list(labels))


def _top(scores: Float64Array, labels: Sequence[str], k: int) -> pa.Array:
    k = min(k, len(labels))
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    values = np.take_along_axis(scores, order, axis=1)
    parts = [pa.array(labels, pa.string()).take(pa.array(order.ravel())), pa.array(values.ravel())]
    pairs = pa.StructArray.from_arrays(parts, names=["label", "probability"])
    return pa.ListArray.from_arrays(pa.array(np.arange(len(scores) + 1, dtype=np.int32) * k), pairs)


def with_columns(table: pa.Table, added: pa.Table) -> pa.Table:
    """A table with the columns of another one of as many rows after its own."""
    for field, column in zip(added.schema, added.columns, strict=True):
        table = table.append_column(field, column)
    return table
