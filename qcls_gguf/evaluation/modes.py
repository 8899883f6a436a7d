"""From the probabilities of all modes to their statistics, the worst rows, and the shares of a cascade's stages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ..config.scoring import JOINT, Scoring
from ..data.labelled import LabelledQuery
from ..prompts.compiled import Prompt
from ..statistics import accepted_probability, mean
from .kept_scores import RowScores
from .metrics import Outcomes, overall_statistics, prompt_statistics
from .passes import CASCADE, Probabilities, ScoreTable, Truth, known_rows, not_applicable
from .records import (
    CascadeRecord,
    ModeCost,
    ModeNotApplicable,
    ModeStatistics,
    NonFiniteRow,
    NotApplicable,
    PromptStatistics,
    RequestCost,
    StageShares,
    WorstRow,
)

N_WORST = 10
"""Rows that a record lists for each mode."""


def mode_statistics(
    modes: Mapping[str, Probabilities],
    truths: Sequence[Truth],
    tables: Mapping[str, ScoreTable],
    costs: Mapping[str, RequestCost],
    common: Sequence[str] | None,
) -> dict[str, ModeStatistics | ModeNotApplicable]:
    """The statistics of each mode, over all rows and by prompt.

    tables: after an exact pass modes are compared with `joint`; costs: by mode, where they were measured; common: see
    compared_prompts.
    """
    return {
        mode: _mode({truth.prompt: _prompt(mode, found, truth, tables) for truth in truths}, costs.get(mode), common)
        for mode, found in modes.items()
    }


def _prompt(
    mode: str, found: Probabilities, truth: Truth, tables: Mapping[str, ScoreTable]
) -> tuple[PromptStatistics, Outcomes] | NotApplicable:
    probability, table = found[truth.prompt], tables[truth.prompt]
    if isinstance(probability, NotApplicable):
        return probability
    if mode == CASCADE or table.label_mass is None:
        return prompt_statistics(truth, probability)
    return prompt_statistics(truth, probability, table.probability(JOINT), table.label_mass)


def _mode(
    by_prompt: Mapping[str, tuple[PromptStatistics, Outcomes] | NotApplicable],
    cost: RequestCost | None,
    common: Sequence[str] | None,
) -> ModeStatistics | ModeNotApplicable:
    applicable = {name: each for name, each in by_prompt.items() if not isinstance(each, NotApplicable)}
    costs = ModeCost(
        p50_ms=cost.p50_ms if cost else None,
        n_tokens_new=cost.n_tokens_new if cost else None,
        latency=cost,
        n_prompts=len(applicable),
        prompts={name: each if isinstance(each, NotApplicable) else each[0] for name, each in by_prompt.items()},
    )
    if not applicable:
        return ModeNotApplicable(not_applicable="no prompt can have it", **dict(costs))
    return ModeStatistics(
        **dict(overall_statistics(list(applicable.values()))),
        **dict(costs),
        compared=None if common is None else overall_statistics([applicable[name] for name in common]),
    )


def compared_prompts(modes: Sequence[Scoring], prompts: Sequence[Prompt]) -> tuple[str, ...] | None:
    """The prompts by which modes are compared: those that every mode can score.

    A mode that can score none does not count. None where every other one can score all, and nothing is left out.
    """
    by_mode = [{prompt.name for prompt in prompts if not not_applicable(prompt, mode)} for mode in modes]
    scored = [names for names in by_mode if names]
    common = tuple(prompt.name for prompt in prompts if all(prompt.name in names for names in scored))
    return common if scored and 0 < len(common) < len(prompts) else None


def worst_rows(
    modes: Mapping[Scoring, Probabilities], truths: Sequence[Truth], rows: Sequence[LabelledQuery]
) -> Iterator[WorstRow]:
    """For each mode the N_WORST rows whose accepted labels have the lowest probability, lowest first."""
    for mode, found in modes.items():
        of_mode = []
        for truth in truths:
            probability = found[truth.prompt]
            if isinstance(probability, NotApplicable):
                continue
            p = probability[truth.index]
            p_accepted = accepted_probability(p, truth.accepted)
            of_mode += [(float(p_accepted[i]), rows[truth.index[i]], truth, p[i]) for i in known_rows(p)]
        for least, row, truth, of_row in sorted(of_mode, key=lambda each: each[0])[:N_WORST]:
            yield WorstRow(
                mode=mode,
                prompt=truth.prompt,
                line=row.line,
                query=row.query,
                accepted=row.labels[truth.prompt],
                p_accepted=least,
                answer=truth.labels[int(of_row.argmax())],
                probability=float(of_row.max()),
            )


def non_finite_rows(rows: Sequence[LabelledQuery], scores: Sequence[RowScores]) -> tuple[NonFiniteRow, ...]:
    """The rows that have no scores because these are not finite."""
    return tuple(
        NonFiniteRow(line=row.line, query=row.query, error=row_scores.error)
        for row, row_scores in zip(rows, scores, strict=True)
        if row_scores.prompts is None
    )


def cascade_record(tables: Mapping[str, ScoreTable], cascade: Probabilities, last: Probabilities) -> CascadeRecord:
    """Which stages answer, and how often as the last one would.

    tables: the cascade's answers; cascade, last: the probabilities of all stages together, and of the last one alone.
    """
    answers: dict[str, list[tuple[str, bool]]] = {}
    for name, table in tables.items():
        p, q = cascade[name], last[name]
        assert not isinstance(p, NotApplicable)
        assert not isinstance(q, NotApplicable)
        same = p.argmax(axis=1) == q.argmax(axis=1)
        answers[name] = [(table.stages[i] or "", bool(same[i])) for i in known_rows(p, q)]
    every = [answer for of_prompt in answers.values() for answer in of_prompt]
    names = list(dict.fromkeys(stage for stage, _ in every))
    return CascadeRecord(
        **dict(_shares(every, names)), prompts={name: _shares(each, names) for name, each in answers.items()}
    )


def _shares(answers: Sequence[tuple[str, bool]], names: Sequence[str]) -> StageShares:
    """answers: for each the stage that answered, and whether the last one answers the same."""
    counts = Counter(stage for stage, _ in answers)
    return StageShares(
        n=len(answers),
        stages={name: counts[name] / len(answers) for name in names} if answers else {},
        agreement=mean([same for _, same in answers]),
    )
