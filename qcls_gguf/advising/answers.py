"""What several configurations answer to the same rows, and from which probability on one may answer for another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from ..classifier import Classifier
from ..config.words import counted
from ..data.labelled import BadRow, LabelledQuery
from ..errors import ConfigError, PlanError, ScoreError
from ..opening import ClassifierOpener
from ..score.result import Result
from ..statistics import FloatArray, IntArray
from ..statistics.stated import agreement_threshold

CONFIDENCE = 0.95
"""of the guarantee of a threshold, for each prompt"""
_N_WARM_UP = 3
"""rows that are asked before any is timed"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The answers of one configuration to n_rows rows, which are the same for all that are compared."""

    probability: Mapping[str, FloatArray]
    """by prompt, (n_rows, n_labels)"""
    n_tokens: IntArray
    """(n_rows,) tokens that a request feeds"""
    ms: FloatArray
    """(n_rows,) of a request"""

    def winners(self, prompt: str) -> IntArray:
        """(n_rows,) the index of the most probable label, whether or not the prompt abstains."""
        return np.asarray(self.probability[prompt].argmax(axis=1))

    def sureness(self, prompt: str) -> FloatArray:
        """(n_rows,) the probability of that label."""
        return np.asarray(self.probability[prompt].max(axis=1))


def ask(
    opener: ClassifierOpener, part: str, classifiers: Sequence[Classifier], rows: Sequence[LabelledQuery]
) -> tuple[list[Answers], list[LabelledQuery], list[BadRow]]:
    """Ask each row of all classifiers in turns, each turn begun by another one; part: the name of this work.

    Returns the answers of each classifier, the rows that they are of, and the rows that are left out for all, since one
    of the classifiers refuses them or gives scores that are not finite. Raises ConfigError where no row is left.
    """
    for row in rows[:_N_WARM_UP]:
        with suppress(PlanError, ScoreError):
            for classifier in classifiers:
                classifier.classify(row.query)
    asked: list[LabelledQuery] = []
    bad: list[BadRow] = []
    found: list[list[tuple[dict[str, FloatArray], int, float]]] = [[] for _ in classifiers]
    for number, row in enumerate(opener.each(part, rows)):
        turn = [(number + offset) % len(classifiers) for offset in range(len(classifiers))]
        try:
            results = {index: _row(classifiers[index].classify(row.query)) for index in turn}
        except (PlanError, ScoreError) as e:
            bad.append(BadRow(row.line, str(e)))
        else:
            asked.append(row)
            for index, result in results.items():
                found[index].append(result)
    if not asked:
        raise ConfigError(f"none of {counted(len(bad), 'row')} can be used: line {bad[0].line}: {bad[0].reason}")
    answers = [
        Answers(
            probability={name: np.stack([row[0][name] for row in each]) for name in each[0][0]},
            n_tokens=np.array([row[1] for row in each]),
            ms=np.array([row[2] for row in each]),
        )
        for each in found
    ]
    return answers, asked, bad


def _row(result: Result) -> tuple[dict[str, FloatArray], int, float]:
    """(each prompt's probabilities, tokens, milliseconds) of one request."""
    probability = {
        answer.prompt: np.array([score.probability for score in answer.scores], np.float64) for answer in result.results
    }
    return probability, result.counts.n_tokens_new, result.total_ms


def fit_cascade(present: Answers, stage: Answers, agreement: float) -> dict[str, float]:
    """For each prompt the lowest threshold with which a stage before the present configuration keeps the agreement.

    Prompts for which none is accepted are left out. agreement: of each prompt's answers to unseen rows, below 1.
    """
    found = {}
    for prompt in present.probability:
        differs = present.winners(prompt) != stage.winners(prompt)
        threshold = agreement_threshold(stage.sureness(prompt), differs, agreement, CONFIDENCE)
        if threshold is not None:
            found[prompt] = threshold
    return found
