"""The statistics of modes: from probabilities and accepted labels to records. qcls_gguf/statistics has the formulas.

A row's true label, in the confusion matrix and F1, is its answer if that is accepted, else the first accepted one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .. import statistics as stats
from ..config.scoring import JOINT, Scoring
from ..data.labelled import LabelledQuery
from ..prompts.compiled import Prompt
from ..statistics import BoolArray, FloatArray
from . import records
from .passes import HEADS, Probabilities, ScoreTable, Truth, not_applicable
from .records import ModeStatistics, NotApplicable, PromptStatistics, Statistics

N_WORST = 10
"""Rows that a record lists for each mode."""
THRESHOLDS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
_N_CONFUSIONS = 10


class Outcomes(NamedTuple):
    """The values of each row from which statistics are computed; every array is (n_rows,)."""

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
    index, accepted, first = truth.index, truth.accepted, truth.first
    p, each, answer = p[index], np.arange(len(index)), p[index].argmax(axis=1)
    nothing = np.full(len(index), np.nan)
    rows = Outcomes(
        confidence=p[each, answer],
        right=accepted[each, answer],
        p_accepted=stats.accepted_probability(p, accepted),
        brier=stats.brier_scores(p, accepted),
        agrees=nothing if joint is None else (answer == joint[index].argmax(axis=1)).astype(np.float64),
        label_mass=nothing if label_mass is None else label_mass[index],
    )
    matrix = stats.confusion_matrix(np.where(rows.right, answer, first), answer, len(truth.prompt.labels))
    f1 = stats.f1_scores(matrix)
    macro_f1 = stats.mean(f1[np.isfinite(f1)])
    return PromptStatistics(
        **dict(_statistics(rows, macro_f1=macro_f1)),
        labels={label: _label(matrix, i, f1[i]) for i, label in enumerate(truth.prompt.labels)},
        confusions=confusions(truth.prompt.labels, matrix),
        confusion_matrix=tuple(map(tuple, matrix.tolist())),
    ), rows


def overall_statistics(prompts: Sequence[tuple[PromptStatistics, Outcomes]]) -> Statistics:
    """The statistics of all rows of all prompts together; macro-F1 is the mean over the prompts."""
    arrays = zip(*(rows for _, rows in prompts), strict=True) if prompts else [[np.empty(0)]] * len(Outcomes._fields)
    return _statistics(
        Outcomes(*map(np.concatenate, arrays)),
        macro_f1=stats.mean([prompt.macro_f1 for prompt, _ in prompts if prompt.macro_f1 is not None]),
    )


def _statistics(rows: Outcomes, *, macro_f1: float | None) -> Statistics:
    n = len(rows.right)
    mass = rows.label_mass[np.isfinite(rows.label_mass)]
    bins = zip(*stats.reliability(rows.confidence, rows.right), strict=True)
    return Statistics(
        n_rows=n,
        accuracy=stats.mean(rows.right),
        accuracy_ci=stats.wilson(int(rows.right.sum()), n),
        macro_f1=macro_f1,
        log_loss=stats.mean(stats.log_losses(rows.p_accepted)),
        n_clipped=int((rows.p_accepted < stats.SMALLEST).sum()),
        brier=stats.mean(rows.brier),
        ece=stats.calibration_error(rows.confidence, rows.right),
        agreement_with_joint=stats.mean(rows.agrees[np.isfinite(rows.agrees)]),
        label_mass=records.LabelMass(mean=float(mass.mean()), p10=stats.quantiles(mass, 0.1)[0], min=float(mass.min()))
        if len(mass)
        else None,
        coverage=tuple(_coverage(rows, threshold) for threshold in THRESHOLDS),
        reliability=tuple(
            records.ReliabilityBin(
                low=i / stats.N_BINS,
                high=(i + 1) / stats.N_BINS,
                n=int(count),
                confidence=float(confidence) if count else None,
                accuracy=float(accuracy) if count else None,
            )
            for i, (count, confidence, accuracy) in enumerate(bins)
        ),
    )


def _coverage(rows: Outcomes, threshold: float) -> records.Coverage:
    is_sure = rows.confidence >= threshold
    return records.Coverage(
        threshold=threshold,
        n=int(is_sure.sum()),
        coverage=stats.mean(is_sure),
        accuracy=stats.mean(rows.right[is_sure]),
    )


def _label(matrix: npt.NDArray[np.int64], i: int, f1: float) -> records.LabelStatistics:
    n_right, support, n_predicted = int(matrix[i, i]), int(matrix[i].sum()), int(matrix[:, i].sum())
    return records.LabelStatistics(
        precision=n_right / n_predicted if n_predicted else None,
        recall=n_right / support if support else None,
        f1=float(f1) if np.isfinite(f1) else None,
        support=support,
        n_predicted=n_predicted,
    )


def confusions(labels: Sequence[str], matrix: npt.NDArray[np.int64]) -> tuple[records.Confusion, ...]:
    """The most frequent confusions, most frequent first; matrix: (n_labels, n_labels) counts by label and answer."""
    wrong = [(int(matrix[i, j]), i, j) for i, j in zip(*np.nonzero(matrix), strict=True) if i != j]
    wrong.sort(key=lambda cell: (-cell[0], cell[1], cell[2]))
    return tuple(records.Confusion(label=labels[i], answer=labels[j], n=n) for n, i, j in wrong[:_N_CONFUSIONS])


def mode_statistics(
    mode: str,
    found: Probabilities,
    truths: Sequence[Truth],
    tables: Mapping[str, ScoreTable],
    common: Sequence[str] | None,
) -> ModeStatistics:
    """The statistics of a mode, over all rows and by prompt.

    found: the mode's probabilities; tables: the scores, with those of `joint` after an exact pass; common: see
    compared_prompts.
    """
    applicable: dict[str, tuple[PromptStatistics, Outcomes]] = {}
    by_prompt: dict[str, PromptStatistics | NotApplicable] = {}
    for truth in truths:
        name, table = truth.prompt.name, tables[truth.prompt.name]
        if reason := not_applicable(truth.prompt, mode):
            by_prompt[name] = NotApplicable(not_applicable=reason)
            continue
        if mode == HEADS or table.label_mass is None:
            applicable[name] = prompt_statistics(truth, found[name])
        else:
            applicable[name] = prompt_statistics(truth, found[name], table.probability(JOINT), table.label_mass)
        by_prompt[name] = applicable[name][0]
    return ModeStatistics(
        **dict(overall_statistics(list(applicable.values()))),
        n_prompts=len(applicable),
        prompts=by_prompt,
        compared=overall_statistics([applicable[name] for name in common]) if common and applicable else None,
    )


def compared_prompts(modes: Sequence[Scoring], prompts: Sequence[Prompt]) -> tuple[str, ...] | None:
    """The prompts by which modes are compared: the prompts that every mode can score.

    A mode that can score none does not count. None if the others can score all prompts.
    """
    by_mode = [{prompt.name for prompt in prompts if not not_applicable(prompt, mode)} for mode in modes]
    scored = [names for names in by_mode if names]
    common = tuple(prompt.name for prompt in prompts if all(prompt.name in names for names in scored))
    return common if scored and 0 < len(common) < len(prompts) else None


def worst_rows(
    modes: Mapping[Scoring, Probabilities], truths: Sequence[Truth], rows: Sequence[LabelledQuery]
) -> Iterator[records.WorstRow]:
    """For each mode the N_WORST rows whose accepted labels have the lowest probability, lowest first."""
    for mode, found in modes.items():
        of_mode = []
        for truth in (truth for truth in truths if truth.prompt.name in found):
            p = found[truth.prompt.name][truth.index]
            p_accepted = stats.accepted_probability(p, truth.accepted).tolist()
            of_mode += [(p_accepted[i], rows[index], truth, p[i]) for i, index in enumerate(truth.index)]
        for least, row, truth, of_row in sorted(of_mode, key=lambda each: each[0])[:N_WORST]:
            yield records.WorstRow(
                mode=mode,
                prompt=truth.prompt.name,
                line=row.line,
                query=row.query,
                accepted=row.labels[truth.prompt.name],
                p_accepted=least,
                answer=truth.prompt.labels[int(of_row.argmax())],
                probability=float(of_row.max()),
            )
