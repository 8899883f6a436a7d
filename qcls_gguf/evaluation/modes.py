"""The scores of a pass as one table of modes: every statistic, and the rows that were scored worst."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..config.scoring import Scoring
from ..data.labelled import LabelledQuery
from ..prompts.compiled import Prompt
from .metrics import FloatArray, Scored, overall_statistics, prompt_statistics
from .passes import PromptScores, RowScores, not_applicable

N_WORST = 10
CALIBRATED = "calibrated"
"""The mode that is every prompt in its configured scoring, calibrated as the configuration says."""

Reading = Callable[[PromptScores], FloatArray]
"""A prompt's probabilities, (n_labels,), from its scores."""


def modes_table(
    modes: Sequence[Scoring],
    prompts: Sequence[Prompt],
    rows: Sequence[LabelledQuery],
    scores: Sequence[RowScores],
    latencies: Mapping[str, dict[str, Any]],
    *,
    exact: bool,
    calibrated: Sequence[Reading] | None = None,
) -> dict[str, dict[str, Any]]:
    """The statistics of each mode, over all rows and by prompt; a prompt that cannot have a mode says why.

    exact: whether the scores hold `joint`, with which the modes are compared; calibrated: each prompt's calibrated
    probabilities, which are a mode of their own.
    """
    readings: dict[str, list[Reading | str]] = {
        mode: [not_applicable(prompt, mode) or partial(PromptScores.probability, mode=mode) for prompt in prompts]
        for mode in modes
    }
    if calibrated is not None:
        readings[CALIBRATED] = list(calibrated)
    table: dict[str, dict[str, Any]] = {}
    for mode, by_mode in readings.items():
        by_prompt: dict[str, dict[str, Any]] = {}
        counted = []
        for prompt, reading in zip(prompts, by_mode, strict=True):
            if isinstance(reading, str):
                by_prompt[prompt.name] = {"not_applicable": reading}
                continue
            found = prompt_statistics(scored(reading, prompt, rows, scores, exact=exact))
            by_prompt[prompt.name] = found[0]
            counted.append(found)
        latency = latencies.get(mode)
        table[mode] = {
            **(overall_statistics(counted) if counted else {"not_applicable": "no prompt can have it"}),
            "p50_ms": latency and latency["p50_ms"],
            "n_tokens_new": latency and latency["n_tokens_new"],
            "latency": latency,
            "n_prompts": len(counted),
            "prompts": by_prompt,
        }
    return table


def scored(
    reading: Reading, prompt: Prompt, rows: Sequence[LabelledQuery], scores: Sequence[RowScores], *, exact: bool
) -> Scored:
    """A prompt's labelled rows by a reading; the probabilities of rows without scores are not numbers."""
    n = len(prompt.labels)
    probability, accepted, true, winners, mass = [], [], [], [], []
    for row, found in zip(rows, scores, strict=True):
        if prompt.name not in row.labels:
            continue
        right = row.labels[prompt.name]
        accepted.append([label in right for label in prompt.labels])
        true.append(prompt.labels.index(right[0]))
        here = found.prompts[prompt.name] if found.prompts else None
        probability.append(reading(here) if here else np.full(n, np.nan))
        if exact:
            winners.append(here.probability("joint").argmax() if here else 0)
            mass.append(here.label_mass if here else np.nan)
    return Scored(
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
) -> list[dict[str, Any]]:
    """For each mode the rows whose accepted labels have the lowest probability, lowest first."""
    worst: list[dict[str, Any]] = []
    for mode in modes:
        found = []
        for prompt in prompts:
            if not_applicable(prompt, mode):
                continue
            for row, row_scores in zip(rows, scores, strict=True):
                if row_scores.prompts is None or prompt.name not in row.labels:
                    continue
                p = row_scores.prompts[prompt.name].probability(mode)
                accepted = row.labels[prompt.name]
                p_accepted = float(sum(p[prompt.labels.index(label)] for label in accepted))
                if np.isfinite(p).all():
                    found.append((p_accepted, row, prompt, accepted, p))
        found.sort(key=lambda each: each[0])
        worst += [
            {
                "mode": mode,
                "prompt": prompt.name,
                "line": row.line,
                "query": row.query,
                "accepted": list(accepted),
                "p_accepted": min(p_accepted, 1.0),
                "answer": prompt.labels[int(p.argmax())],
                "probability": float(p.max()),
            }
            for p_accepted, row, prompt, accepted, p in found[:N_WORST]
        ]
    return worst


def non_finite_rows(rows: Sequence[LabelledQuery], scores: Sequence[RowScores]) -> list[dict[str, Any]]:
    """The rows that have no scores, by name."""
    return [
        {"line": row.line, "query": row.query, "error": found.error}
        for row, found in zip(rows, scores, strict=True)
        if found.prompts is None
    ]
