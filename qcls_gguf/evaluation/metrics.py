"""Statistics of probabilities against accepted labels: pure numpy, no model.

With p the probabilities of a row over a prompt's labels, A its accepted labels and w the most probable label:

- accuracy: the share of rows with w in A, with the Wilson 95 % interval of that share
- log-loss: the mean of -ln max(Σ_A p, 1e-12)
- Brier: the mean of (1 - Σ_A p)² + Σ over the other labels of p², the accepted labels taken as one class
- ECE: over 15 equal bins of p_w, the mean of |accuracy - mean p_w| of the bins, weighted by their rows
- F1 of a label: 2·tp / (2·tp + fp + fn), where a row's true label is w if w is accepted, else the first accepted one;
  macro-F1 is the mean over the labels that are true or predicted in some row
- coverage at t: the share of rows with p_w >= t, and the accuracy of those

Rows whose probabilities are not finite are counted and left out of everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..statistics import N_BINS, SMALLEST, BoolArray, FloatArray, IntArray, wilson
from .records import Confusion, Coverage, LabelMass, LabelStatistics, PromptStatistics, ReliabilityBin, Statistics

THRESHOLDS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledProbabilities:
    """The probabilities of one prompt's labels in one mode, and the accepted labels; a row for each labelled query."""

    labels: tuple[str, ...]
    probability: FloatArray
    """(n_rows, n_labels)"""
    accepted: BoolArray
    """(n_rows, n_labels)"""
    true: IntArray
    """(n_rows,) the first accepted label"""
    joint_winner: IntArray | None
    """(n_rows,) the answers of `joint`; None where it was not computed"""
    label_mass: FloatArray | None
    """(n_rows,) the probability that lies on the labels at all; None where it was not computed"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOutcomes:
    """What the statistics need of each row, whatever its prompt's labels are; every array is (n_rows,)."""

    winner: IntArray
    """index of the most probable label, which is the answer"""
    confidence: FloatArray
    """the answer's probability"""
    right: BoolArray
    """whether the answer is accepted"""
    p_accepted: FloatArray
    """probability of the accepted labels together"""
    brier: FloatArray
    agrees: BoolArray | None
    """whether `joint` gives the same answer; None where it was not computed"""
    label_mass: FloatArray | None


def finite_rows(scored: LabelledProbabilities) -> tuple[LabelledProbabilities, int]:
    """The rows whose probabilities are all finite, and the number of the others."""
    keep = np.isfinite(scored.probability).all(axis=1)
    kept = LabelledProbabilities(
        labels=scored.labels,
        probability=scored.probability[keep],
        accepted=scored.accepted[keep],
        true=scored.true[keep],
        joint_winner=None if scored.joint_winner is None else scored.joint_winner[keep],
        label_mass=None if scored.label_mass is None else scored.label_mass[keep],
    )
    return kept, int((~keep).sum())


def row_outcomes(scored: LabelledProbabilities) -> RowOutcomes:
    """The answers and errors of rows with finite probabilities; of equally probable labels the first is the answer."""
    p, accepted = scored.probability, scored.accepted
    index, winner = np.arange(len(p)), p.argmax(axis=1)
    p_accepted = np.minimum(np.where(accepted, p, 0).sum(axis=1), 1)
    return RowOutcomes(
        winner=winner,
        confidence=p[index, winner],
        right=accepted[index, winner],
        p_accepted=p_accepted,
        brier=(1 - p_accepted) ** 2 + (np.where(accepted, 0, p) ** 2).sum(axis=1),
        agrees=None if scored.joint_winner is None else winner == scored.joint_winner,
        label_mass=scored.label_mass,
    )


def pooled(parts: Sequence[RowOutcomes]) -> RowOutcomes:
    """The rows of several prompts one after the other."""
    agrees = [part.agrees for part in parts if part.agrees is not None]
    mass = [part.label_mass for part in parts if part.label_mass is not None]
    return RowOutcomes(
        winner=np.concatenate([part.winner for part in parts]),
        confidence=np.concatenate([part.confidence for part in parts]),
        right=np.concatenate([part.right for part in parts]),
        p_accepted=np.concatenate([part.p_accepted for part in parts]),
        brier=np.concatenate([part.brier for part in parts]),
        agrees=np.concatenate(agrees) if agrees else None,
        label_mass=np.concatenate(mass) if mass else None,
    )


def reliability(rows: RowOutcomes) -> tuple[ReliabilityBin, ...]:
    """The rows in N_BINS equal bins of the answer's probability."""
    index = np.clip((rows.confidence * N_BINS).astype(np.intp), 0, N_BINS - 1)
    return tuple(
        ReliabilityBin(
            low=i / N_BINS,
            high=(i + 1) / N_BINS,
            n=int((index == i).sum()),
            confidence=_mean(rows.confidence[index == i]),
            accuracy=_mean(rows.right[index == i]),
        )
        for i in range(N_BINS)
    )


def calibration_error(bins: Sequence[ReliabilityBin]) -> float | None:
    """The expected calibration error of the bins of `reliability`; None without rows."""
    n = sum(one_bin.n for one_bin in bins)
    gaps = [
        one_bin.n * abs(one_bin.accuracy - one_bin.confidence)
        for one_bin in bins
        if one_bin.accuracy is not None and one_bin.confidence is not None
    ]
    return sum(gaps) / n if n else None


def statistics(rows: RowOutcomes, *, macro_f1: float | None, n_non_finite: int) -> Statistics:
    """All statistics that need no label names."""
    n, n_right = len(rows.right), int(rows.right.sum())
    bins = reliability(rows)
    return Statistics(
        n_rows=n,
        accuracy=_mean(rows.right),
        accuracy_ci=wilson(n_right, n),
        macro_f1=macro_f1,
        log_loss=_mean(0 - np.log(np.maximum(rows.p_accepted, SMALLEST))),
        n_clipped=int((rows.p_accepted < SMALLEST).sum()),
        brier=_mean(rows.brier),
        ece=calibration_error(bins),
        agreement_with_joint=None if rows.agrees is None else _mean(rows.agrees),
        label_mass=_label_mass(rows.label_mass),
        coverage=tuple(_coverage(rows, threshold) for threshold in THRESHOLDS),
        reliability=bins,
        n_non_finite=n_non_finite,
    )


def _label_mass(mass: FloatArray | None) -> LabelMass | None:
    if mass is None or not len(mass):
        return None
    return LabelMass(mean=float(mass.mean()), p10=float(np.quantile(mass, 0.1)), min=float(mass.min()))


def _coverage(rows: RowOutcomes, threshold: float) -> Coverage:
    is_sure = rows.confidence >= threshold
    return Coverage(
        threshold=threshold, n=int(is_sure.sum()), coverage=_mean(is_sure), accuracy=_mean(rows.right[is_sure])
    )


def confusion(scored: LabelledProbabilities, rows: RowOutcomes) -> npt.NDArray[np.int64]:
    """(n_labels, n_labels) the number of rows of each true label that got each label."""
    n = len(scored.labels)
    true = np.where(rows.right, rows.winner, scored.true)
    matrix = np.zeros((n, n), np.int64)
    np.add.at(matrix, (true, rows.winner), 1)
    return matrix


def label_statistics(labels: Sequence[str], matrix: npt.NDArray[np.int64]) -> dict[str, LabelStatistics]:
    """The statistics of each label, from the confusion matrix."""
    by_label = {}
    for i, label in enumerate(labels):
        n_right, support, n_predicted = int(matrix[i, i]), int(matrix[i].sum()), int(matrix[:, i].sum())
        by_label[label] = LabelStatistics(
            precision=n_right / n_predicted if n_predicted else None,
            recall=n_right / support if support else None,
            f1=2 * n_right / (support + n_predicted) if support + n_predicted else None,
            support=support,
            n_predicted=n_predicted,
        )
    return by_label


def confusions(labels: Sequence[str], matrix: npt.NDArray[np.int64], n_most: int = 10) -> tuple[Confusion, ...]:
    """The n_most most frequent confusions, most frequent first."""
    wrong = [(int(matrix[i, j]), i, j) for i, j in zip(*np.nonzero(matrix), strict=True) if i != j]
    wrong.sort(key=lambda cell: (-cell[0], cell[1], cell[2]))
    return tuple(Confusion(label=labels[i], answer=labels[j], n=n) for n, i, j in wrong[:n_most])


def prompt_statistics(scored: LabelledProbabilities) -> tuple[PromptStatistics, RowOutcomes]:
    """The statistics of one prompt in one mode, and the rows with finite probabilities that they are of."""
    kept, n_non_finite = finite_rows(scored)
    rows = row_outcomes(kept)
    matrix = confusion(kept, rows)
    labels = label_statistics(kept.labels, matrix)
    macro_f1 = _mean([label.f1 for label in labels.values() if label.f1 is not None])
    return PromptStatistics(
        **dict(statistics(rows, macro_f1=macro_f1, n_non_finite=n_non_finite)),
        labels=labels,
        confusions=confusions(kept.labels, matrix),
        confusion_matrix=tuple(map(tuple, matrix.tolist())),
    ), rows


def overall_statistics(prompts: Sequence[tuple[PromptStatistics, RowOutcomes]]) -> Statistics:
    """The statistics of all rows of all prompts together; macro-F1 is the mean over the prompts."""
    return statistics(
        pooled([rows for _, rows in prompts]),
        macro_f1=_mean([prompt.macro_f1 for prompt, _ in prompts if prompt.macro_f1 is not None]),
        n_non_finite=sum(prompt.n_non_finite for prompt, _ in prompts),
    )


def _mean(values: npt.ArrayLike) -> float | None:
    array = np.asarray(values, np.float64)
    return float(array.mean()) if array.size else None
