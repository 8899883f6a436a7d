"""The statistics of a mode: from probabilities and accepted labels to records. qcls_gguf/statistics has the formulas.

A row's true label, in the confusion matrix and F1, is its answer if that is accepted, else the first accepted one.
Rows whose probabilities are not finite are counted and left out of everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..statistics import (
    N_BINS,
    SMALLEST,
    BoolArray,
    FloatArray,
    accepted_probability,
    brier_scores,
    calibration_error,
    confusion_matrix,
    f1_scores,
    log_losses,
    mean,
    quantiles,
    reliability,
    wilson,
)
from .passes import Truth
from .records import Confusion, Coverage, LabelMass, LabelStatistics, PromptStatistics, ReliabilityBin, Statistics

THRESHOLDS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
_N_CONFUSIONS = 10


class Outcomes(NamedTuple):
    """What the statistics need of each row, whatever its prompt's labels are; every array is (n_rows,)."""

    confidence: FloatArray
    """the answer's probability"""
    right: BoolArray
    """whether the answer is accepted"""
    p_accepted: FloatArray
    """probability of the accepted labels together"""
    brier: FloatArray
    agrees: FloatArray
    """1 where `joint` gives the same answer, 0 where another; NaN where it was not computed"""
    label_mass: FloatArray
    """the probability that lies on the labels at all; NaN where it was not computed"""


def prompt_statistics(
    truth: Truth, p: FloatArray, joint: FloatArray | None = None, label_mass: FloatArray | None = None
) -> tuple[PromptStatistics, Outcomes]:
    """The statistics of one prompt in one mode, and the outcomes of the rows that they are of.

    p, joint: (n_rows, n_labels) of all rows, the mode's probabilities and those of `joint`; label_mass: (n_rows,).
    """
    finite = np.isfinite(p[truth.index]).all(axis=1)
    index, accepted, first = truth.index[finite], truth.accepted[finite], truth.first[finite]
    p, each, answer = p[index], np.arange(len(index)), p[index].argmax(axis=1)
    nothing = np.full(len(index), np.nan)
    rows = Outcomes(
        confidence=p[each, answer],
        right=accepted[each, answer],
        p_accepted=accepted_probability(p, accepted),
        brier=brier_scores(p, accepted),
        agrees=nothing if joint is None else (answer == joint[index].argmax(axis=1)).astype(np.float64),
        label_mass=nothing if label_mass is None else label_mass[index],
    )
    matrix = confusion_matrix(np.where(rows.right, answer, first), answer, len(truth.labels))
    f1 = f1_scores(matrix)
    macro_f1 = mean(f1[np.isfinite(f1)])
    return PromptStatistics(
        **dict(_statistics(rows, macro_f1=macro_f1, n_non_finite=int((~finite).sum()))),
        labels={label: _label(matrix, i, f1[i]) for i, label in enumerate(truth.labels)},
        confusions=_confusions(truth.labels, matrix),
        confusion_matrix=tuple(map(tuple, matrix.tolist())),
    ), rows


def overall_statistics(prompts: Sequence[tuple[PromptStatistics, Outcomes]]) -> Statistics:
    """The statistics of all rows of all prompts together; macro-F1 is the mean over the prompts."""
    return _statistics(
        Outcomes(*map(np.concatenate, zip(*(rows for _, rows in prompts), strict=True))),
        macro_f1=mean([prompt.macro_f1 for prompt, _ in prompts if prompt.macro_f1 is not None]),
        n_non_finite=sum(prompt.n_non_finite for prompt, _ in prompts),
    )


def _statistics(rows: Outcomes, *, macro_f1: float | None, n_non_finite: int) -> Statistics:
    n = len(rows.right)
    mass = rows.label_mass[np.isfinite(rows.label_mass)]
    bins = zip(*reliability(rows.confidence, rows.right), strict=True)
    return Statistics(
        n_rows=n,
        accuracy=mean(rows.right),
        accuracy_ci=wilson(int(rows.right.sum()), n),
        macro_f1=macro_f1,
        log_loss=mean(log_losses(rows.p_accepted)),
        n_clipped=int((rows.p_accepted < SMALLEST).sum()),
        brier=mean(rows.brier),
        ece=calibration_error(rows.confidence, rows.right),
        agreement_with_joint=mean(rows.agrees[np.isfinite(rows.agrees)]),
        label_mass=LabelMass(mean=float(mass.mean()), p10=quantiles(mass, 0.1)[0], min=float(mass.min()))
        if len(mass)
        else None,
        coverage=tuple(_coverage(rows, threshold) for threshold in THRESHOLDS),
        reliability=tuple(
            ReliabilityBin(
                low=i / N_BINS,
                high=(i + 1) / N_BINS,
                n=int(count),
                confidence=float(confidence) if count else None,
                accuracy=float(accuracy) if count else None,
            )
            for i, (count, confidence, accuracy) in enumerate(bins)
        ),
        n_non_finite=n_non_finite,
    )


def _coverage(rows: Outcomes, threshold: float) -> Coverage:
    is_sure = rows.confidence >= threshold
    return Coverage(
        threshold=threshold, n=int(is_sure.sum()), coverage=mean(is_sure), accuracy=mean(rows.right[is_sure])
    )


def _label(matrix: npt.NDArray[np.int64], i: int, f1: float) -> LabelStatistics:
    n_right, support, n_predicted = int(matrix[i, i]), int(matrix[i].sum()), int(matrix[:, i].sum())
    return LabelStatistics(
        precision=n_right / n_predicted if n_predicted else None,
        recall=n_right / support if support else None,
        f1=float(f1) if np.isfinite(f1) else None,
        support=support,
        n_predicted=n_predicted,
    )


def _confusions(labels: Sequence[str], matrix: npt.NDArray[np.int64]) -> tuple[Confusion, ...]:
    """The most frequent confusions, most frequent first."""
    wrong = [(int(matrix[i, j]), i, j) for i, j in zip(*np.nonzero(matrix), strict=True) if i != j]
    wrong.sort(key=lambda cell: (-cell[0], cell[1], cell[2]))
    return tuple(Confusion(label=labels[i], answer=labels[j], n=n) for n, i, j in wrong[:_N_CONFUSIONS])
