"""Labelled rows asked of a classifier: which can be used, which labels are right, and arrays of what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..classifier import Classifier
from ..config.schema import Config
from ..data.labelled import BadRow, LabelledColumns, LabelledData, LabelledQuery, read_labelled, refusal
from ..errors import PlanError, ScoreError
from ..opening import ClassifierOpener
from ..prompts.compiled import Prompt
from ..score.result import PromptResult
from ..statistics import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """The accepted labels of the n rows that are labelled for a prompt."""

    prompt: Prompt
    index: IntArray
    """(n,) which of all rows these are"""
    accepted: BoolArray
    """(n, n_labels)"""
    first: IntArray
    """(n,) the label that a row names first"""


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


def read_rows(config: Config, path: Path, columns: LabelledColumns, *, skip_bad: bool) -> LabelledData:
    """The labelled queries of a file for a configuration's prompts. Raises ConfigError as `usable_rows` does."""
    data = read_labelled(path, {prompt.name: prompt.labels for prompt in config.prompts}, columns)
    usable_rows(data, skip_bad=skip_bad)
    return data


def usable_rows(
    data: LabelledData, classifier: Classifier | None = None, *, skip_bad: bool
) -> tuple[list[LabelledQuery], list[BadRow]]:
    """The rows that can be used and the others: as they were read, and those whose query the classifier would refuse.

    Nothing is computed. Raises ConfigError for rows that cannot be used, unless they are to be left out and others
    remain.
    """
    bad = list(data.bad)
    for row in data.rows if classifier else ():
        try:
            classifier.check(row.query)  # type: ignore[union-attr]
        except PlanError as e:
            bad.append(BadRow(row.line, str(e)))
    bad.sort(key=lambda row: row.line)
    n_rows = len(data.rows) + len(data.bad)
    if bad and (not skip_bad or len(bad) == n_rows):
        raise refusal(data.path, bad, n_rows)
    lines = {row.line for row in bad}
    return [row for row in data.rows if row.line not in lines], bad


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The usable rows of a file, and what a classifier answers to them."""

    rows: list[LabelledQuery]
    answers: list[tuple[PromptResult, ...]]
    """of the rows, an answer a prompt"""
    bad: list[BadRow]
    """rows that could not be used"""
    non_finite: list[BadRow]
    """rows whose scores are not finite"""


def answer_rows(
    classifier: Classifier, data: LabelledData, opener: ClassifierOpener, *, skip_bad: bool, finite: bool = False
) -> Answered:
    """Ask the rows one by one, as `run` does.

    Raises as `usable_rows` does, DecodeError, and ScoreError where no row has finite scores, or, with `finite`, one has
    not.
    """
    usable, bad = usable_rows(data, classifier, skip_bad=skip_bad)
    answered = Answered(rows=[], answers=[], bad=bad, non_finite=[])
    for row in opener.progress("score", usable):
        try:
            answered.answers.append(classifier.classify(row.query).results)
            answered.rows.append(row)
        except ScoreError as e:
            answered.non_finite.append(BadRow(row.line, str(e)))
    if answered.non_finite and (finite or not answered.rows):
        lines = ", ".join(str(row.line) for row in answered.non_finite)
        raise ScoreError(f"`data` {data.path}: scores that are not finite: lines {lines}: leave these rows out")
    return answered


def probabilities_of(answers: Sequence[PromptResult]) -> FloatArray:
    """(n_rows, n_labels) the probabilities of one prompt's labels, as answered."""
    return np.array([[score.probability for score in answer.scores] for answer in answers], np.float64)


def raw_scores(answers: Sequence[PromptResult]) -> FloatArray:
    """(n_rows, n_labels) the uncalibrated scores in answers of one prompt."""
    return np.array([[score.score for score in answer.scores] for answer in answers], np.float64)
