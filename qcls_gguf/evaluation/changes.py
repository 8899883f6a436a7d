"""The same rows scored twice: which answers changed, and how far the probabilities moved.

A row's difference in a mode is the largest |difference| of the probabilities of a prompt's labels. A flip is a row
whose most probable label is another one; of equally probable labels the first counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..config.scoring import Scoring
from ..data.labelled import LabelledQuery
from ..prompts.compiled import Prompt
from .passes import RowScores
from .robustness_records import Differences, Flip

N_LISTED = 10
"""Flips that a record lists; its counts are of all flips."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One row's answers for one prompt in one mode, before and after."""

    mode: Scoring
    prompt: str
    row: LabelledQuery
    answers: tuple[str, str]
    probabilities: tuple[float, float]
    """of the first answer before, of the second after"""
    margin: float
    """by how much the first answer was more probable than the next label"""
    difference: float
    rendering: int | None
    """index of the order of labels that gave the second answer; None where the order is the same"""

    @property
    def is_flip(self) -> bool:
        """Whether the answers differ."""
        return self.answers[0] != self.answers[1]


def changes(
    mode: Scoring,
    prompt: Prompt,
    rows: Sequence[LabelledQuery],
    before: Sequence[RowScores],
    after: Sequence[RowScores],
    rendering: int | None = None,
) -> list[Change]:
    """The changes of one prompt in one mode, of the rows that have scores both before and after."""
    row_changes = []
    for row, first, second in zip(rows, before, after, strict=True):
        if first.prompts is None or second.prompts is None:
            continue
        p, q = first.prompts[prompt.name].probability(mode), second.prompts[prompt.name].probability(mode)
        highest = np.sort(p)[-2:]
        row_changes.append(
            Change(
                mode=mode,
                prompt=prompt.name,
                row=row,
                answers=(prompt.labels[int(p.argmax())], prompt.labels[int(q.argmax())]),
                probabilities=(float(p.max()), float(q.max())),
                margin=float(highest[1] - highest[0]),
                difference=float(np.abs(p - q).max()),
                rendering=rendering,
            )
        )
    return row_changes


def differences(row_changes: Sequence[Change]) -> Differences:
    """The largest and the mean difference."""
    values = [change.difference for change in row_changes]
    return Differences(
        largest_probability_difference=max(values, default=None),
        mean_probability_difference=float(np.mean(values)) if values else None,
    )


def listed_flips(row_changes: Iterable[Change]) -> tuple[Flip, ...]:
    """The N_LISTED flips whose probabilities moved furthest, furthest first."""
    flips = sorted((change for change in row_changes if change.is_flip), key=lambda change: -change.difference)
    return tuple(
        Flip(
            mode=flip.mode,
            prompt=flip.prompt,
            line=flip.row.line,
            query=flip.row.query,
            rendering=flip.rendering,
            answer=flip.answers[0],
            probability=flip.probabilities[0],
            margin=flip.margin,
            other_answer=flip.answers[1],
            other_probability=flip.probabilities[1],
            difference=flip.difference,
        )
        for flip in flips[:N_LISTED]
    )
