"""Times and answers of a way beside those of our classifier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .way import Answer

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What our classifier says of one prompt of one query."""

    label: str
    """the winner in the configuration's scoring"""
    joint_label: str
    joint: tuple[float, ...]
    tree: tuple[float, ...]
    """log-probabilities among the labels"""


def latency(ms: FloatArray, qcls_ms: FloatArray) -> dict[str, Any]:
    """Times of shape (n_rounds, n_queries) as percentiles, and as ratios to ours.

    ratio_to_qcls is the ratio of the medians over all requests; ratio_range the 10 % and 90 % quantiles of the ratios
    of the rounds' medians.
    """
    ratios = np.median(ms, axis=1) / np.median(qcls_ms, axis=1)
    return {
        "p50_ms": float(np.median(ms)),
        "p90_ms": float(np.quantile(ms, 0.9)),
        "ratio_to_qcls": float(np.median(ms) / np.median(qcls_ms)),
        "ratio_range": [float(np.quantile(ratios, 0.1)), float(np.quantile(ratios, 0.9))],
    }


def agreement(answers: Sequence[Answer], references: Sequence[Reference]) -> dict[str, Any]:
    """How far answers agree with ours, in the order of queries and prompts.

    agreement counts equal winners among the answers that have one, with the configuration's scoring and with `joint`;
    the differences are the largest absolute ones between log-probabilities.
    """
    pairs = list(zip(answers, references, strict=True))
    said = [(answer, reference) for answer, reference in pairs if answer.label is not None]
    joint = [
        abs(found - wanted)
        for answer, reference in pairs
        if answer.joint
        for found, wanted in zip(answer.joint, reference.joint, strict=True)
        if found is not None
    ]
    tree = [
        abs(found - wanted)
        for answer, reference in pairs
        if answer.tree is not None
        for found, wanted in zip(answer.tree, reference.tree, strict=True)
    ]
    return {
        "agreement": {
            "scoring": _share([answer.label == reference.label for answer, reference in said]),
            "joint": _share([answer.label == reference.joint_label for answer, reference in said]),
            "n_answers": len(said),
            "n_without_answer": len(pairs) - len(said),
        },
        "largest_log_probability_difference": max(joint, default=None),
        "n_log_probabilities": len(joint),
        "largest_tree_difference": max(tree, default=None),
        "n_tree_log_probabilities": len(tree),
    }


def not_comparable() -> dict[str, Any]:
    """What stands for the agreement of a way with other weights."""
    return {
        "agreement": None,
        "largest_log_probability_difference": None,
        "n_log_probabilities": 0,
        "largest_tree_difference": None,
        "n_tree_log_probabilities": 0,
    }


def _share(equal: Sequence[bool]) -> float | None:
    return sum(equal) / len(equal) if equal else None
