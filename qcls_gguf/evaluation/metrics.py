"""The statistics of prompts: from probabilities and accepted labels to records. qcls_gguf/statistics has the formulas.

A row's true label, in the confusion matrix, recall and F1, is its answer if that is accepted, else the first accepted
one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .. import statistics as stats
from ..config.fitted import Calibration
from ..data.labelled import LabelledQuery
from ..errors import ConfigError
from ..score.result import PromptResult
from ..statistics import BoolArray, FloatArray
from ..statistics.fitting import p_value_of_error
from . import records
from .passes import Truth
from .records import PromptStatistics, Statistics

LEVEL = 0.05
"""With this probability at most statements that are all true are said to fail."""
_N_CONFUSIONS = 10


class Outcomes(NamedTuple):
    """The values of the rows from which statistics are computed; every array is (n_rows,)."""

    confidence: FloatArray
    """the answer's probability"""
    right: BoolArray
    """whether the answer is accepted"""
    p_accepted: FloatArray
    """probability of the accepted labels together"""
    constant: BoolArray
    """whether the label that is accepted by most rows is accepted"""


def prompt_statistics(
    truth: Truth, p: FloatArray, answers: Sequence[PromptResult] | None = None
) -> tuple[PromptStatistics, Outcomes]:
    """The statistics of one prompt, and the outcomes of the rows that they are of.

    p: (n_rows, n_labels) the probabilities of all rows; answers: to all rows, if there are any, for fallbacks.
    """
    index, accepted, labels = truth.index, truth.accepted, truth.prompt.labels
    p, rows, answer = p[index], np.arange(len(index)), p[index].argmax(axis=1)
    outcomes = Outcomes(
        confidence=p[rows, answer],
        right=accepted[rows, answer],
        p_accepted=stats.accepted_probability(p, accepted),
        constant=accepted[:, accepted.sum(axis=0).argmax()],
    )
    matrix = stats.confusion_matrix(np.where(outcomes.right, answer, truth.first), answer, len(labels))
    f1, support = stats.f1_scores(matrix), matrix.sum(axis=1)
    recall = matrix.diagonal()[support > 0] / support[support > 0]
    found = _statistics(outcomes, balanced=stats.mean(recall), macro_f1=stats.mean(f1[np.isfinite(f1)]))
    return PromptStatistics(
        **dict(found),
        prompt=truth.prompt.name,
        n_abstained=sum(answers[row].abstained for row in index) if answers else 0,
        labels={label: _label(matrix, place) for place, label in enumerate(labels)},
        confusions=confusions(labels, matrix),
        confusion_matrix=tuple(map(tuple, matrix.tolist())),
    ), outcomes


def joint_statistics(found: Sequence[tuple[PromptStatistics, Outcomes]]) -> Statistics:
    """The statistics of all rows of at least one prompt; balanced accuracy and macro-F1 are means over the prompts."""
    balanced, f1 = [prompt.balanced_accuracy for prompt, _ in found], [prompt.macro_f1 for prompt, _ in found]
    return _statistics(
        Outcomes(*map(np.concatenate, zip(*(outcomes for _, outcomes in found), strict=True))),
        balanced=stats.mean([value for value in balanced if value is not None]),
        macro_f1=stats.mean([value for value in f1 if value is not None]),
    )


def _statistics(rows: Outcomes, *, balanced: float | None, macro_f1: float | None) -> Statistics:
    n = len(rows.right)
    bins = zip(*stats.reliability(rows.confidence, rows.right), strict=True)
    return Statistics(
        n_rows=n,
        accuracy=stats.mean(rows.right),
        accuracy_ci=stats.wilson(int(rows.right.sum()), n),
        balanced_accuracy=balanced,
        majority=stats.mean(rows.constant),
        macro_f1=macro_f1,
        log_loss=stats.mean(stats.log_losses(rows.p_accepted)),
        ece=stats.calibration_error(rows.confidence, rows.right),
        reliability=tuple(
            records.ReliabilityBin(
                n=int(count),
                confidence=float(confidence) if count else None,
                accuracy=float(accuracy) if count else None,
            )
            for count, confidence, accuracy in bins
        ),
    )


def _label(matrix: npt.NDArray[np.int64], place: int) -> records.LabelStatistics:
    n_right, support, n_predicted = matrix[place, place], int(matrix[place].sum()), int(matrix[:, place].sum())
    return records.LabelStatistics(
        precision=float(n_right / n_predicted) if n_predicted else None,
        recall=float(n_right / support) if support else None,
        support=support,
        n_predicted=n_predicted,
    )


def confusions(labels: Sequence[str], matrix: npt.NDArray[np.int64]) -> tuple[records.Confusion, ...]:
    """The most frequent confusions, most frequent first; matrix: (n_labels, n_labels) counts by label and answer."""
    wrong = [(int(matrix[i, j]), i, j) for i, j in zip(*np.nonzero(matrix), strict=True) if i != j]
    wrong.sort(key=lambda cell: (-cell[0], cell[1], cell[2]))
    return tuple(records.Confusion(label=labels[i], answer=labels[j], n=n) for n, i, j in wrong[:_N_CONFUSIONS])


def check_statements(
    calibration: Calibration,
    rows: Sequence[LabelledQuery],
    answers: Sequence[Sequence[PromptResult]],
    truths: Sequence[Truth],
) -> records.CheckRecord:
    """Stated errors on rows whose queries the calibration was not made with. Raises ConfigError without such rows.

    answers: of the rows; truths: of the prompts, in the answers' order.
    """
    is_known = calibration.known([row.query for row in rows])
    if all(is_known):
        raise ConfigError("`check_error`: the calibration was made with all of these queries: give other rows")
    stated = {name: fit.error.target for name, fit in calibration.prompts.items() if fit.error}
    checks = []
    for number, truth in enumerate(truths):
        if (target := stated.get(truth.prompt.name)) is None:
            continue
        new = [place for place, row in enumerate(truth.index) if not is_known[row]]
        counted = [place for place in new if not answers[truth.index[place]][number].abstained]
        labels = [truth.prompt.labels.index(answers[truth.index[place]][number].label) for place in counted]
        n_wrong = int((~truth.accepted[counted, labels]).sum())
        p_value = p_value_of_error(n_wrong, len(counted), target)
        checks.append(
            records.Check(
                prompt=truth.prompt.name,
                stated=target,
                n_rows=len(new),
                n_counted=len(counted),
                n_seen=n_wrong,
                p_value=p_value,
                holds=p_value >= LEVEL / len(stated),
                power=_power(len(counted), target),
            )
        )
    return records.CheckRecord(n_known=sum(is_known), checks=tuple(checks))


def _power(n: int, target: float) -> float:
    """With which probability n answers of an error rate of twice the target are too unlikely under the target."""
    least = next((k for k in range(n + 1) if p_value_of_error(k, n, target) < LEVEL), None)
    return 0.0 if least is None else p_value_of_error(least, n, min(2 * target, 1 - 1e-9))
