"""Times and answers of a method compared with those of our classifier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .method import Answer
from .records import Agreement, Latency, WinnerAgreement

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


def latency(ms: FloatArray, qcls_ms: FloatArray) -> Latency:
    """The times of a method and of ours, each (n_rounds, n_queries) milliseconds, as quantiles and ratios.

    The ratio and its range are quantiles of one thing: of each round's ratio of medians.
    """
    ratios = np.median(ms, axis=1) / np.median(qcls_ms, axis=1)
    return Latency(
        p50_ms=float(np.median(ms)),
        p90_ms=float(np.quantile(ms, 0.9)),
        ratio_to_qcls=float(np.median(ratios)),
        ratio_range=(float(np.quantile(ratios, 0.1)), float(np.quantile(ratios, 0.9))),
    )


def agreement(answers: Sequence[Answer], references: Sequence[Reference]) -> Agreement:
    """How far a method's answers agree with ours; answers and references are in the order of queries and prompts."""
    pairs = list(zip(answers, references, strict=True))
    with_winner = [(answer, reference) for answer, reference in pairs if answer.label is not None]
    joint_differences = [
        abs(theirs - ours)
        for answer, reference in pairs
        if answer.joint
        for theirs, ours in zip(answer.joint, reference.joint, strict=True)
        if theirs is not None
    ]
    tree_differences = [
        abs(theirs - ours)
        for answer, reference in pairs
        if answer.tree is not None
        for theirs, ours in zip(answer.tree, reference.tree, strict=True)
    ]
    return Agreement(
        agreement=WinnerAgreement(
            scoring=_share([answer.label == reference.label for answer, reference in with_winner]),
            joint=_share([answer.label == reference.joint_label for answer, reference in with_winner]),
            n_answers=len(with_winner),
            n_without_answer=len(pairs) - len(with_winner),
        ),
        largest_log_probability_difference=max(joint_differences, default=None),
        n_log_probabilities=len(joint_differences),
        largest_tree_difference=max(tree_differences, default=None),
        n_tree_log_probabilities=len(tree_differences),
    )


def not_comparable() -> Agreement:
    """The agreement of a method that runs on other weights: none."""
    return Agreement(
        agreement=None,
        largest_log_probability_difference=None,
        n_log_probabilities=0,
        largest_tree_difference=None,
        n_tree_log_probabilities=0,
    )


def _share(equal: Sequence[bool]) -> float | None:
    return sum(equal) / len(equal) if equal else None
