"""What a candidate's answers say, prompt by prompt, against the original's and against labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..config.prompt import PromptConfig
from ..data.labelled import LabelledQuery
from ..statistics import BoolArray, FloatArray, accepted_probability, log_losses, wilson
from .records import Disagreement, PromptAgreement
from .trial import Row

_N_LISTED = 10
"""Disagreements of a prompt that are listed."""


def prompt_agreement(
    prompt: PromptConfig, rows: Sequence[LabelledQuery], original: Sequence[Row], tried: Sequence[Row], *, worse: bool
) -> PromptAgreement:
    """One prompt's agreement and accuracy; rows may be more than were tried. prompt: the original's."""
    pairs = [
        (row, first[prompt.name], second[prompt.name])
        for row, first, second in zip(rows, original, tried, strict=False)
        if first is not None and second is not None
    ]
    n_agree = sum(int(first.argmax() == second.argmax()) for _, first, second in pairs)
    labelled = [(row.labels[prompt.name], first, second) for row, first, second in pairs if prompt.name in row.labels]
    accuracy: dict[str, Any] = {}
    if labelled:
        accepted = np.array([[label in labels for label in prompt.labels] for labels, _, _ in labelled])
        right, log_loss = _accuracy(prompt, accepted, [second for _, _, second in labelled])
        original_right, original_log_loss = _accuracy(prompt, accepted, [first for _, first, _ in labelled])
        accuracy = {
            "accuracy": right / len(labelled),
            "accuracy_ci": wilson(right, len(labelled)),
            "log_loss": log_loss,
            "original_accuracy": original_right / len(labelled),
            "original_log_loss": original_log_loss,
        }
    return PromptAgreement(
        n=len(pairs),
        n_agree=n_agree,
        agreement=n_agree / len(pairs) if pairs else None,
        agreement_ci=wilson(n_agree, len(pairs)),
        clearly_worse=worse,
        n_labelled=len(labelled),
        **accuracy,
    )


def _accuracy(prompt: PromptConfig, accepted: BoolArray, probabilities: Sequence[FloatArray]) -> tuple[int, float]:
    """(right answers, mean log-loss) of the rows' probabilities; accepted: (n_rows, n_labels)."""
    p = np.array(probabilities)
    right = accepted[np.arange(len(p)), p.argmax(axis=1)]
    return int(right.sum()), float(log_losses(accepted_probability(p, accepted)).mean())


def disagreements(
    prompts: Sequence[PromptConfig], rows: Sequence[LabelledQuery], original: Sequence[Row], tried: Sequence[Row]
) -> tuple[Disagreement, ...]:
    """The first of each prompt's disagreements, with both distributions."""
    found = []
    for prompt in prompts:
        n = 0
        for row, first, second in zip(rows, original, tried, strict=False):
            if first is None or second is None or n == _N_LISTED:
                continue
            p, q = first[prompt.name], second[prompt.name]
            if p.argmax() == q.argmax():
                continue
            n += 1
            found.append(
                Disagreement(
                    prompt=prompt.name,
                    line=row.line,
                    query=row.query,
                    original=dict(zip(prompt.labels, p.tolist(), strict=True)),
                    candidate=dict(zip(prompt.labels, q.tolist(), strict=True)),
                    accepted=row.labels.get(prompt.name),
                )
            )
    return tuple(found)
