"""How much the answers depend on the order in which a template lists its labels."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..config.schema import Config, PromptConfig
from ..config.scoring import Scoring
from ..config.template import LABELS_SLOT, expand_labels
from ..data.labelled import LabelledQuery
from ..errors import ConfigError
from ..prompts.compiled import Prompt
from .changes import Change, changes, differences, listed_flips
from .passes import RowScores, not_applicable

_WITHOUT_SLOT = f"its prompt_template has no {LABELS_SLOT} slot"


def check_slots(config: Config) -> None:
    """Refuse a configuration none of whose templates has a `{labels}` slot. Raises ConfigError."""
    if not any(LABELS_SLOT in prompt.prompt_template for prompt in config.prompts):
        raise ConfigError(
            f"`shuffle_labels`: no prompt_template has a {LABELS_SLOT} slot: write it in place of the list of labels, "
            f"as in: Output exactly one label from [{LABELS_SLOT}]."
        )


def label_orders(labels: Sequence[str], k: int, seed: str) -> list[tuple[str, ...]]:
    """k orders of the labels, none of them the given one, all distinct as long as there are so many."""
    generator = random.Random(seed)
    n_others = math.factorial(len(labels)) - 1
    found: list[tuple[str, ...]] = []
    seen: set[tuple[str, ...]] = set()
    while len(found) < k:
        order = tuple(generator.sample(labels, len(labels)))
        if order != tuple(labels) and order not in seen:
            found.append(order)
            seen = set() if len(seen) + 1 == n_others else {*seen, order}
    return found


def _rendering(config: Config, orders: Mapping[str, Sequence[Sequence[str]]], index: int) -> Config:
    """The configuration with other lists of labels in its templates, all else as it is."""

    def listed(prompt: PromptConfig) -> PromptConfig:
        labels = orders[prompt.name][index] if prompt.name in orders else prompt.labels
        return dataclasses.replace(prompt, prompt_template=expand_labels(prompt.prompt_template, labels))

    return dataclasses.replace(config, prompts=tuple(map(listed, config.prompts)))


def shuffle_record(
    config: Config,
    modes: Sequence[Scoring],
    prompts: Sequence[Prompt],
    rows: Sequence[LabelledQuery],
    scores: Sequence[RowScores],
    *,
    k: int,
    seed: int,
    score: Callable[[Config, str], Sequence[RowScores]],
) -> dict[str, Any]:
    """The entry `shuffle_labels` of an evaluation.

    config, prompts, scores: as configured; score(rendering, part) scores all rows in another rendering.
    """
    orders = {
        prompt.name: label_orders(prompt.labels, k, f"{seed} {prompt.name}")
        for prompt in config.prompts
        if LABELS_SLOT in prompt.prompt_template
    }
    others = [score(_rendering(config, orders, i), f"shuffle {i + 1} of {k}") for i in range(k)]
    table: dict[str, Any] = {}
    every: list[Change] = []
    for mode in modes:
        by_prompt: dict[str, Any] = {}
        for prompt in prompts:
            reason = not_applicable(prompt, mode) if prompt.name in orders else _WITHOUT_SLOT
            if reason:
                by_prompt[prompt.name] = {"not_applicable": reason}
                continue
            counted = [i for i, row in enumerate(rows) if prompt.name in row.labels]
            found = [_changes(mode, prompt, counted, rows, scores, other, i) for i, other in enumerate(others)]
            by_prompt[prompt.name] = _statistics(found)
            every += [change for each in found for change in each]
        table[mode] = {"prompts": by_prompt}
    return {"k": k, "seed": seed, "orders": orders, "modes": table, "flips": listed_flips(every)}


def _changes(
    mode: Scoring,
    prompt: Prompt,
    counted: Sequence[int],
    rows: Sequence[LabelledQuery],
    before: Sequence[RowScores],
    after: Sequence[RowScores],
    rendering: int,
) -> list[Change]:
    """The changes of the rows that count for a prompt."""
    chosen = [rows[i] for i in counted]
    return changes(mode, prompt, chosen, [before[i] for i in counted], [after[i] for i in counted], rendering)


def _statistics(found: Sequence[Sequence[Change]]) -> dict[str, Any]:
    """Of one prompt in one mode: found[k] are the changes by rendering k."""
    every = [change for each in found for change in each]
    n_flips = sum(change.is_flip for change in every)
    accuracies = [float(np.mean([_is_right(change, 1) for change in each])) for each in found if each]
    configured = [_is_right(change, 0) for change in found[0]]
    return {
        "flip_rate": n_flips / len(every) if every else None,
        "n_flips": n_flips,
        "n_rows": len(configured),
        "accuracy": {
            "configured": float(np.mean(configured)) if configured else None,
            "mean": float(np.mean(accuracies)) if accuracies else None,
            "min": min(accuracies, default=None),
            "max": max(accuracies, default=None),
        },
        **differences(every),
    }


def _is_right(change: Change, side: int) -> bool:
    return change.answers[side] in change.row.labels[change.prompt]
