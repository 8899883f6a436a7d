"""Scores against accepted labels, as statistics: pure numpy, no model.

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

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]
BoolArray = npt.NDArray[np.bool_]

N_BINS = 15
THRESHOLDS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
SMALLEST = 1e-12
"""Where the log-loss clips a probability."""
_Z95 = 1.959963984540054  # the 97.5 % point of the normal distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """The rows of one prompt in one mode."""

    labels: tuple[str, ...]
    probability: FloatArray
    """(n_rows, n_labels)"""
    accepted: BoolArray
    """(n_rows, n_labels)"""
    true: IntArray
    """(n_rows,) the first accepted label"""
    joint_winner: IntArray | None
    """(n_rows,) what the exact mode answers; none where it was not computed"""
    label_mass: FloatArray | None
    """(n_rows,)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What the statistics need of each row, whatever its prompt's labels are; every array is (n_rows,)."""

    winner: IntArray
    confidence: FloatArray
    right: BoolArray
    p_accepted: FloatArray
    brier: FloatArray
    agrees: BoolArray | None
    label_mass: FloatArray | None


def finite(scored: Scored) -> tuple[Scored, int]:
    """The rows whose probabilities are all finite, and how many are not."""
    keep = np.isfinite(scored.probability).all(axis=1)
    kept = Scored(
        labels=scored.labels,
        probability=scored.probability[keep],
        accepted=scored.accepted[keep],
        true=scored.true[keep],
        joint_winner=None if scored.joint_winner is None else scored.joint_winner[keep],
        label_mass=None if scored.label_mass is None else scored.label_mass[keep],
    )
    return kept, int((~keep).sum())


def rows_of(scored: Scored) -> Rows:
    """The winners and errors of finite rows; the first of equally probable labels wins."""
    p, accepted = scored.probability, scored.accepted
    index, winner = np.arange(len(p)), p.argmax(axis=1)
    p_accepted = np.minimum(np.where(accepted, p, 0).sum(axis=1), 1)
    return Rows(
        winner=winner,
        confidence=p[index, winner],
        right=accepted[index, winner],
        p_accepted=p_accepted,
        brier=(1 - p_accepted) ** 2 + (np.where(accepted, 0, p) ** 2).sum(axis=1),
        agrees=None if scored.joint_winner is None else winner == scored.joint_winner,
        label_mass=scored.label_mass,
    )


def pooled(parts: Sequence[Rows]) -> Rows:
    """The rows of several prompts one after the other."""
    agrees = [part.agrees for part in parts if part.agrees is not None]
    mass = [part.label_mass for part in parts if part.label_mass is not None]
    return Rows(
        winner=np.concatenate([part.winner for part in parts]),
        confidence=np.concatenate([part.confidence for part in parts]),
        right=np.concatenate([part.right for part in parts]),
        p_accepted=np.concatenate([part.p_accepted for part in parts]),
        brier=np.concatenate([part.brier for part in parts]),
        agrees=np.concatenate(agrees) if agrees else None,
        label_mass=np.concatenate(mass) if mass else None,
    )


def wilson(n_right: int, n: int) -> tuple[float, float] | None:
    """The Wilson 95 % interval of a share; none without rows."""
    if n == 0:
        return None
    share, z2 = n_right / n, _Z95 * _Z95
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def reliability(rows: Rows) -> list[dict[str, Any]]:
    """The bins of the winner's probability, [low, high) and the last one closed; empty bins have no means."""
    index = np.clip((rows.confidence * N_BINS).astype(np.intp), 0, N_BINS - 1)
    bins = []
    for i in range(N_BINS):
        here = index == i
        bins.append(
            {
                "low": i / N_BINS,
                "high": (i + 1) / N_BINS,
                "n": int(here.sum()),
                "confidence": _mean(rows.confidence[here]),
                "accuracy": _mean(rows.right[here]),
            }
        )
    return bins


def calibration_error(bins: Sequence[dict[str, Any]]) -> float | None:
    """The expected calibration error of the bins of `reliability`."""
    n = sum(each["n"] for each in bins)
    gaps = [each["n"] * abs(each["accuracy"] - each["confidence"]) for each in bins if each["n"]]
    return sum(gaps) / n if n else None


def summary(rows: Rows) -> dict[str, Any]:
    """Every statistic that needs no label names; null where there are no rows to take it from."""
    n, n_right = len(rows.right), int(rows.right.sum())
    interval = wilson(n_right, n)
    bins = reliability(rows)
    return {
        "n_rows": n,
        "accuracy": _mean(rows.right),
        "accuracy_ci": None if interval is None else list(interval),
        "log_loss": _mean(0 - np.log(np.maximum(rows.p_accepted, SMALLEST))),
        "n_clipped": int((rows.p_accepted < SMALLEST).sum()),
        "brier": _mean(rows.brier),
        "ece": calibration_error(bins),
        "agreement_with_joint": None if rows.agrees is None else _mean(rows.agrees),
        "label_mass": _mass(rows.label_mass),
        "coverage": [_coverage(rows, threshold) for threshold in THRESHOLDS],
        "reliability": bins,
    }


def _mass(mass: FloatArray | None) -> dict[str, float] | None:
    if mass is None or not len(mass):
        return None
    return {"mean": float(mass.mean()), "p10": float(np.quantile(mass, 0.1)), "min": float(mass.min())}


def _coverage(rows: Rows, threshold: float) -> dict[str, Any]:
    sure = rows.confidence >= threshold
    n = int(sure.sum())
    return {"threshold": threshold, "n": n, "coverage": _mean(sure), "accuracy": _mean(rows.right[sure])}


def confusion(scored: Scored, rows: Rows) -> npt.NDArray[np.int64]:
    """(n_labels, n_labels) how many rows of each true label got each label."""
    n = len(scored.labels)
    true = np.where(rows.right, rows.winner, scored.true)
    matrix = np.zeros((n, n), np.int64)
    np.add.at(matrix, (true, rows.winner), 1)
    return matrix


def by_label(labels: Sequence[str], matrix: npt.NDArray[np.int64]) -> dict[str, dict[str, Any]]:
    """Precision, recall, F1 and support of each label; null where a label is never predicted, or never true."""
    found: dict[str, dict[str, Any]] = {}
    for i, label in enumerate(labels):
        right, support, predicted = int(matrix[i, i]), int(matrix[i].sum()), int(matrix[:, i].sum())
        found[label] = {
            "precision": right / predicted if predicted else None,
            "recall": right / support if support else None,
            "f1": 2 * right / (support + predicted) if support + predicted else None,
            "support": support,
            "n_predicted": predicted,
        }
    return found


def macro_f1(labels: dict[str, dict[str, Any]]) -> float | None:
    """The mean F1 of the labels that are true or predicted in some row."""
    return _mean([label["f1"] for label in labels.values() if label["f1"] is not None])


def confusions(labels: Sequence[str], matrix: npt.NDArray[np.int64], n_most: int = 10) -> list[dict[str, Any]]:
    """The most frequent confusions, most frequent first."""
    wrong = [(int(matrix[i, j]), i, j) for i, j in zip(*np.nonzero(matrix), strict=True) if i != j]
    wrong.sort(key=lambda each: (-each[0], each[1], each[2]))
    return [{"label": labels[i], "answer": labels[j], "n": n} for n, i, j in wrong[:n_most]]


def prompt_statistics(scored: Scored) -> tuple[dict[str, Any], Rows]:
    """Every statistic of one prompt in one mode, and the finite rows they were taken from."""
    kept, n_lost = finite(scored)
    rows = rows_of(kept)
    matrix = confusion(kept, rows)
    labels = by_label(kept.labels, matrix)
    found = summary(rows)
    return {
        **_with_macro_f1(found, macro_f1(labels)),
        "n_non_finite": n_lost,
        "labels": labels,
        "confusions": confusions(kept.labels, matrix),
        "confusion_matrix": matrix.tolist(),
    }, rows


def overall_statistics(prompts: Sequence[tuple[dict[str, Any], Rows]]) -> dict[str, Any]:
    """The statistics of all rows of all prompts together; macro-F1 is the mean over the prompts."""
    f1 = [found["macro_f1"] for found, _ in prompts if found["macro_f1"] is not None]
    return {
        **_with_macro_f1(summary(pooled([rows for _, rows in prompts])), _mean(f1)),
        "n_non_finite": sum(found["n_non_finite"] for found, _ in prompts),
    }


def _with_macro_f1(found: dict[str, Any], value: float | None) -> dict[str, Any]:
    """The summary with macro-F1 behind the accuracy."""
    head = {key: found[key] for key in ("n_rows", "accuracy", "accuracy_ci")}
    return {**head, "macro_f1": value, **{key: found[key] for key in found if key not in head}}


def _mean(values: npt.ArrayLike) -> float | None:
    array = np.asarray(values, np.float64)
    return float(array.mean()) if array.size else None
