"""From the scores of a pass to the statistics of every mode, and to the rows that were scored worst."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from ..config.scoring import Scoring
from ..data.labelled import LabelledQuery
from ..prompts.compiled import Prompt
from ..statistics import FloatArray
from .metrics import LabelledProbabilities, RowOutcomes, overall_statistics, prompt_statistics
from .passes import PromptScores, RowScores, not_applicable
from .records import ModeNotApplicable, ModeStatistics, NonFiniteRow, PromptStatistics, RequestCost, WorstRow
from .robustness_records import NotApplicable

N_WORST = 10
"""Rows that a record lists for each mode."""
CALIBRATED = "calibrated"
"""The name of the mode in which every prompt has its configured scoring, calibrated as configured."""
CASCADE = "cascade"
"""The name of the mode in which a cascade answers, with all its stages."""

ToProbability = Callable[[PromptScores], FloatArray]
"""From a prompt's scores to the probabilities of its labels, (n_labels,)."""


def mode_statistics(
    modes: Sequence[Scoring],
    prompts: Sequence[Prompt],
    rows: Sequence[LabelledQuery],
    scores: Sequence[RowScores],
    costs: Mapping[str, RequestCost],
    *,
    exact: bool,
    calibrated: Sequence[ToProbability] | None = None,
    cascade: Sequence[RowScores] | None = None,
) -> dict[str, ModeStatistics | ModeNotApplicable]:
    """The statistics of each mode, over all rows and by prompt.

    costs: by mode, where they were measured; exact: whether the scores hold `joint`, with which the modes are compared;
    calibrated: for each prompt how its calibrated probabilities are computed; they are a mode of their own. cascade:
    what a cascade answers to the rows; another mode.
    """
    to_probability: dict[str, list[ToProbability | str]] = {
        mode: [not_applicable(prompt, mode) or partial(PromptScores.probability, mode=mode) for prompt in prompts]
        for mode in modes
    }
    if calibrated is not None:
        to_probability[CALIBRATED] = list(calibrated)
    found: dict[str, dict[str, tuple[PromptStatistics, RowOutcomes] | NotApplicable]] = {}
    for mode, of_mode in to_probability.items():
        found[mode] = {
            prompt.name: NotApplicable(not_applicable=probability)
            if isinstance(probability, str)
            else prompt_statistics(labelled_probabilities(probability, prompt, rows, scores, exact=exact))
            for prompt, probability in zip(prompts, of_mode, strict=True)
        }
    if cascade is not None:
        as_answered = partial(PromptScores.probability, mode="tree")
        found[CASCADE] = {
            prompt.name: prompt_statistics(labelled_probabilities(as_answered, prompt, rows, cascade, exact=False))
            for prompt in prompts
        }
    common = compared_prompts(modes, prompts)
    return {mode: _mode(by_prompt, costs.get(mode), common) for mode, by_prompt in found.items()}


def compared_prompts(modes: Sequence[Scoring], prompts: Sequence[Prompt]) -> tuple[str, ...] | None:
    """The prompts by which modes are compared: those that every mode can score.

    A mode that can score none does not count. None where every other one can score all, and nothing is left out.
    """
    by_mode = [{prompt.name for prompt in prompts if not not_applicable(prompt, mode)} for mode in modes]
    scored = [names for names in by_mode if names]
    common = tuple(prompt.name for prompt in prompts if all(prompt.name in names for names in scored))
    return common if scored and 0 < len(common) < len(prompts) else None


def _mode(
    by_prompt: Mapping[str, tuple[PromptStatistics, RowOutcomes] | NotApplicable],
    cost: RequestCost | None,
    common: Sequence[str] | None,
) -> ModeStatistics | ModeNotApplicable:
    applicable = {name: each for name, each in by_prompt.items() if not isinstance(each, NotApplicable)}
    p50_ms, n_tokens_new = (cost.p50_ms, cost.n_tokens_new) if cost else (None, None)
    of_prompts = {name: each if isinstance(each, NotApplicable) else each[0] for name, each in by_prompt.items()}
    if not applicable:
        return ModeNotApplicable(
            not_applicable="no prompt can have it",
            p50_ms=p50_ms,
            n_tokens_new=n_tokens_new,
            latency=cost,
            n_prompts=0,
            prompts=of_prompts,
        )
    return ModeStatistics(
        **dict(overall_statistics(list(applicable.values()))),
        p50_ms=p50_ms,
        n_tokens_new=n_tokens_new,
        latency=cost,
        n_prompts=len(applicable),
        prompts=of_prompts,
        compared=None if common is None else overall_statistics([applicable[name] for name in common]),
    )


def labelled_probabilities(
    to_probability: ToProbability,
    prompt: Prompt,
    rows: Sequence[LabelledQuery],
    scores: Sequence[RowScores],
    *,
    exact: bool,
) -> LabelledProbabilities:
    """The rows that are labelled for a prompt; the probabilities of rows without scores are NaN."""
    n = len(prompt.labels)
    probability, accepted, true, winners, mass = [], [], [], [], []
    for row, row_scores in zip(rows, scores, strict=True):
        if prompt.name not in row.labels:
            continue
        accepted_labels = row.labels[prompt.name]
        accepted.append([label in accepted_labels for label in prompt.labels])
        true.append(prompt.labels.index(accepted_labels[0]))
        prompt_scores = row_scores.prompts[prompt.name] if row_scores.prompts else None
        probability.append(to_probability(prompt_scores) if prompt_scores else np.full(n, np.nan))
        if exact:
            winners.append(prompt_scores.probability("joint").argmax() if prompt_scores else 0)
            mass.append(prompt_scores.label_mass if prompt_scores else np.nan)
    return LabelledProbabilities(
        labels=prompt.labels,
        probability=np.array(probability).reshape(-1, n),
        accepted=np.array(accepted, np.bool_).reshape(-1, n),
        true=np.array(true, np.intp),
        joint_winner=np.array(winners, np.intp) if exact else None,
        label_mass=np.array(mass, np.float64) if exact else None,
    )


def worst_rows(
    modes: Sequence[Scoring],
    prompts: Sequence[Prompt],
    rows: Sequence[LabelledQuery],
    scores: Sequence[RowScores],
) -> tuple[WorstRow, ...]:
    """For each mode the N_WORST rows whose accepted labels have the lowest probability, lowest first."""
    worst: list[WorstRow] = []
    for mode in modes:
        of_mode = []
        for prompt in prompts:
            if not_applicable(prompt, mode):
                continue
            for row, row_scores in zip(rows, scores, strict=True):
                if row_scores.prompts is None or prompt.name not in row.labels:
                    continue
                p = row_scores.prompts[prompt.name].probability(mode)
                if np.isfinite(p).all():
                    of_mode.append(_worst_row(mode, prompt, row, p))
        worst += sorted(of_mode, key=lambda row: row.p_accepted)[:N_WORST]
    return tuple(worst)


def _worst_row(mode: Scoring, prompt: Prompt, row: LabelledQuery, p: FloatArray) -> WorstRow:
    accepted = row.labels[prompt.name]
    return WorstRow(
        mode=mode,
        prompt=prompt.name,
        line=row.line,
        query=row.query,
        accepted=accepted,
        p_accepted=min(float(sum(p[prompt.labels.index(label)] for label in accepted)), 1.0),
        answer=prompt.labels[int(p.argmax())],
        probability=float(p.max()),
    )


def non_finite_rows(rows: Sequence[LabelledQuery], scores: Sequence[RowScores]) -> tuple[NonFiniteRow, ...]:
    """The rows that have no scores because these are not finite."""
    return tuple(
        NonFiniteRow(line=row.line, query=row.query, error=row_scores.error)
        for row, row_scores in zip(rows, scores, strict=True)
        if row_scores.prompts is None
    )
