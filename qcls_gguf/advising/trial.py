"""A prompt set's answers to the queries, as far as they are worth computing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import ScoreError
from ..evaluation.kept_scores import KeptScores, RowScores
from ..evaluation.passes import answered_scores
from ..loaded_prompts import LoadedPrompts
from .sequential import is_worse

FloatArray = npt.NDArray[np.float64]
Row = Mapping[str, FloatArray] | None
"""a query's probabilities by prompt, (n_labels,) each; None where its scores are not finite"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The answers of one candidate."""

    rows: tuple[Row, ...]
    """of the first queries, or of all"""
    worse: tuple[str, ...]
    """prompts that are clearly worse than the limit"""
    complete: bool
    """whether all queries were asked"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """When a candidate is given up."""

    limit: float
    """least share of equal answers, prompt by prompt"""
    level: float
    """chance to give up a candidate that keeps the limit in every prompt"""
    least_prompts: int
    """it goes on as long as so many prompts are not clearly worse"""


def ask_all(
    prompts: LoadedPrompts, queries: Sequence[str], kept: KeptScores | None, on_row: Callable[[], None]
) -> Iterator[Row]:
    """The answers to the queries one by one; those that `kept` has are not computed again."""
    for query in queries:
        scores = None if kept is None else kept.get(query)
        if scores is None:
            try:
                scores = answered_scores(prompts.classify(query))
            except ScoreError as e:
                scores = RowScores(error=str(e))
            if kept is not None:
                kept.add(query, scores)
        on_row()
        if scores.prompts is None:
            yield None
        else:
            yield {name: np.exp(np.array(each.tree)) for name, each in scores.prompts.items()}


def try_candidate(answers: Iterator[Row], original: Sequence[Row], rule: Rule) -> Trial:
    """Take answers as long as the candidate may still keep the limit; original: the answers to compare with."""
    rows: list[Row] = []
    n: dict[str, int] = {}
    n_other: dict[str, int] = {}
    worse: dict[str, None] = {}
    for row, other in zip(answers, original, strict=False):
        rows.append(row)
        if row is None or other is None:
            continue
        for name, probability in row.items():
            n[name] = n.get(name, 0) + 1
            n_other[name] = n_other.get(name, 0) + int(probability.argmax() != other[name].argmax())
            if name not in worse and is_worse(n[name], n_other[name], rule.limit, rule.level / len(row)):
                worse[name] = None
        if worse and len(row) - len(worse) < rule.least_prompts:
            break
    return Trial(rows=tuple(rows), worse=tuple(worse), complete=len(rows) == len(original))


def parted_rows(original: Sequence[Row], tried: Sequence[Row], apart: Sequence[str]) -> tuple[Row, ...]:
    """The answers of a candidate whose prompts in `apart` are the original's."""
    return tuple(
        None if first is None or second is None else {**second, **{name: first[name] for name in apart}}
        for first, second in zip(original, tried, strict=False)
    )
