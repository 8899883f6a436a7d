"""Passes over labelled queries: from one decode a query to arrays of its scores in every mode.

A mode is a scoring, or CALIBRATED or HEADS. Arrays have a row for each query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ..classifier import Classifier
from ..config.prompt import PromptConfig
from ..config.scoring import FIRST_TOKEN, JOINT, MEAN, SCORINGS, TREE, Scoring
from ..data.labelled import BadRow, LabelledData, LabelledQuery, refusal
from ..errors import ConfigError, PlanError
from ..prompts.compiled import Prompt
from ..prompts.trie import build_trie
from ..score.adjustment import Adjustment, adjusted_scores
from ..score.result import PromptResult, Result
from ..statistics import BoolArray, FloatArray, IntArray, softmax

CALIBRATED = "calibrated"
"""The name of the mode in which every prompt has its configured scoring, calibrated as configured."""
HEADS = "heads"
"""The name of the mode in which learnt heads answer the prompts that have one, as configured."""

Probabilities = Mapping[str, FloatArray]
"""one mode's probabilities, (n_rows, n_labels) each, by the prompts that can have the mode"""

_TINY = np.finfo(np.float64).tiny


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptScores:
    """One query's scores for one prompt's labels, in the order of the configuration."""

    by_scoring: Mapping[Scoring, Sequence[float]]
    """those of `tree`; after an exact pass also those of the exact scorings"""
    label_mass: float | None = None
    """the probability of all labels together; None if the pass was not exact"""


RowScores: TypeAlias = Mapping[str, PromptScores]
"""one query's scores by prompt"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTable:
    """One prompt's scores of all rows."""

    by_scoring: Mapping[Scoring, FloatArray]
    """(n_rows, n_labels) each. Those of `first_token` are the tree's: where all labels differ in their first token,
    both are softmaxes over the same logits, which differ by a constant. The exact ones only after an exact pass."""
    label_mass: FloatArray | None
    """(n_rows,) the probability that lies on the labels at all; None where the pass was not exact"""

    def probability(self, scoring: Scoring) -> FloatArray:
        """(n_rows, n_labels) the probabilities of the labels."""
        return np.asarray(softmax(self.by_scoring[scoring]), np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """The accepted labels of the n rows that are labelled for a prompt."""

    prompt: Prompt
    index: IntArray
    """(n,) which of all rows these are"""
    accepted: BoolArray
    """(n, n_labels)"""
    first: IntArray
    """(n,) the label that each row names first"""


def truth_of(prompt: Prompt, rows: Sequence[LabelledQuery]) -> Truth:
    """The accepted labels of a prompt by row."""
    labelled = [(index, row.labels[prompt.name]) for index, row in enumerate(rows) if prompt.name in row.labels]
    accepted = [[label in names for label in prompt.labels] for _, names in labelled]
    return Truth(
        prompt=prompt,
        index=np.array([index for index, _ in labelled], np.intp),
        accepted=np.array(accepted, np.bool_).reshape(-1, len(prompt.labels)),
        first=np.array([prompt.labels.index(names[0]) for _, names in labelled], np.intp),
    )


def score_tables(prompts: Sequence[Prompt], rows: Sequence[RowScores]) -> dict[str, ScoreTable]:
    """The scores of the rows as arrays, by prompt."""
    tables = {}
    for prompt in prompts:
        scores = [row[prompt.name] for row in rows]
        by_scoring: dict[Scoring, FloatArray] = {
            scoring: np.array([each.by_scoring[scoring] for each in scores], np.float64).reshape(-1, len(prompt.labels))
            for scoring in (scores[0].by_scoring if scores else SCORINGS)
        }
        masses = [each.label_mass for each in scores]
        tables[prompt.name] = ScoreTable(
            by_scoring={**by_scoring, FIRST_TOKEN: by_scoring[TREE]},
            label_mass=None if None in masses else np.array(masses, np.float64),
        )
    return tables


def calibrated_probabilities(
    prompts: Sequence[PromptConfig], tables: Mapping[str, ScoreTable], adjustments: Sequence[Adjustment]
) -> Probabilities:
    """The probabilities of a pass in each prompt's configured scoring, calibrated."""
    return {
        prompt.name: np.exp(adjusted_scores(tables[prompt.name].by_scoring[prompt.scoring], each), dtype=np.float64)
        for prompt, each in zip(prompts, adjustments, strict=True)
    }


def probabilities_of(scoring: Scoring, prompts: Sequence[Prompt], tables: Mapping[str, ScoreTable]) -> Probabilities:
    """The probabilities of a pass in one scoring."""
    applicable = [prompt.name for prompt in prompts if not not_applicable(prompt, scoring)]
    return {name: tables[name].probability(scoring) for name in applicable}


def not_applicable(prompt: Prompt, mode: str) -> str | None:
    """The reason why a prompt cannot have a mode; None if it can."""
    if mode == FIRST_TOKEN:
        try:
            build_trie(prompt.labels, prompt.label_tokens, -1, FIRST_TOKEN)
        except ConfigError as e:
            return str(e)
    return None


def usable_rows(
    data: LabelledData, classifier: Classifier | None = None, *, skip_bad: bool
) -> tuple[list[LabelledQuery], list[BadRow]]:
    """The rows that can be used and the others: as they were read, and those whose query the classifier would refuse.

    Raises ConfigError for rows that cannot be used, unless they are to be left out and others remain.
    """
    refused = refused_queries(classifier, data.rows) if classifier else []
    bad = sorted([*data.bad, *refused], key=lambda row: row.line)
    n_rows = len(data.rows) + len(data.bad)
    if bad and (not skip_bad or len(bad) == n_rows):
        raise refusal(data.path, bad, n_rows)
    lines = {row.line for row in bad}
    return [row for row in data.rows if row.line not in lines], bad


def refused_queries(classifier: Classifier, rows: Sequence[LabelledQuery]) -> list[BadRow]:
    """The rows whose query the classifier would refuse; nothing is computed."""
    refused = []
    for row in rows:
        try:
            classifier.check(row.query)
        except PlanError as e:
            refused.append(BadRow(row.line, str(e)))
    return refused


def row_scores(result: Result) -> RowScores:
    """The scores in a result of a classifier whose prompts are all scored by `tree`."""
    return {answer.prompt: prompt_scores(answer) for answer in result.results}


def prompt_scores(answer: PromptResult) -> PromptScores:
    """The scores in an answer of a prompt that is scored by `tree`, with its audit if it has one."""
    tree, audit = [score.score for score in answer.scores], answer.audit
    if audit is None:
        return PromptScores(by_scoring={TREE: tree})
    exact: Mapping[Scoring, Sequence[float]] = {JOINT: list(audit.joint), MEAN: list(audit.mean)}
    return PromptScores(by_scoring={TREE: tree, **exact}, label_mass=audit.label_mass)


def answered_scores(result: Result) -> RowScores:
    """The calibrated probabilities of a result; their logarithms take the place of `tree`."""
    found = {}
    for answer in result.results:
        logarithms = np.log(np.maximum([score.probability for score in answer.scores], _TINY)).tolist()
        found[answer.prompt] = PromptScores(by_scoring={TREE: logarithms})
    return found
