"""How far answers depend on the order in which a template lists its labels."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..config.prompt import PromptConfig
from ..config.schema import Config
from ..config.scoring import Scoring
from ..config.template import LABEL_SLOTS, LABELS_SLOT, expand
from ..data.labelled import LabelledQuery
from ..errors import ConfigError
from ..prompts.compiled import Prompt
from .changes import Change, changes, differences, listed_flips
from .passes import RowScores, not_applicable
from .robustness_records import NotApplicable, ShuffledAccuracy, ShuffledLabels, ShuffledMode, ShuffledPrompt

_WITHOUT_SLOT = f"its text has no {LABELS_SLOT} slot"


def check_slots(config: Config) -> None:
    """Raise ConfigError for a configuration none of whose templates has a `{labels}` slot."""
    if not any(prompt.has_labels_slot for prompt in config.prompts):
        raise ConfigError(
            f"`shuffle_labels`: no prompt's text has a {LABELS_SLOT} slot: write it in place of the list of labels, "
            f"as in: Output exactly one label from [{LABELS_SLOT}]."
        )


def label_orders(labels: Sequence[str], k: int, seed: str) -> list[tuple[str, ...]]:
    """k orders of the labels other than the given one; they repeat only after all n! - 1 others were used."""
    generator = random.Random(seed)
    n_others = math.factorial(len(labels)) - 1
    orders: list[tuple[str, ...]] = []
    seen: set[tuple[str, ...]] = set()
    while len(orders) < k:
        order = tuple(generator.sample(labels, len(labels)))
        if order != tuple(labels) and order not in seen:
            orders.append(order)
            seen = set() if len(seen) + 1 == n_others else {*seen, order}
    return orders


def with_order(config: Config, orders: Mapping[str, Sequence[Sequence[str]]], index: int) -> Config:
    """The configuration with the labels listed in order number `index` of each prompt in `orders`."""

    def reordered(prompt: PromptConfig) -> PromptConfig:
        labels = orders[prompt.name][index] if prompt.name in orders else prompt.labels
        texts = prompt.words.in_order(labels).texts
        slots = {slot: texts[slot] for slot in LABEL_SLOTS}
        return dataclasses.replace(prompt, prompt_template=expand(prompt.template, slots))

    return dataclasses.replace(config, prompts=tuple(map(reordered, config.prompts)))


def shuffled_labels(
    config: Config,
    modes: Sequence[Scoring],
    prompts: Sequence[Prompt],
    rows: Sequence[LabelledQuery],
    scores: Sequence[RowScores],
    *,
    k: int,
    seed: int,
    score: Callable[[Config, str], Sequence[RowScores]],
) -> ShuffledLabels:
    """Score the rows with the labels in k other orders, and compare with their scores in the configured one.

    config, prompts and scores are as configured; score(other_config, part) scores all rows by another configuration.
    """
    orders = {
        prompt.name: label_orders(prompt.labels, k, f"{seed} {prompt.name}")
        for prompt in config.prompts
        if prompt.has_labels_slot
    }
    others = [score(with_order(config, orders, i), f"shuffle {i + 1} of {k}") for i in range(k)]
    shuffled_modes: dict[Scoring, ShuffledMode] = {}
    all_changes: list[Change] = []
    for mode in modes:
        by_prompt: dict[str, ShuffledPrompt | NotApplicable] = {}
        for prompt in prompts:
            reason = not_applicable(prompt, mode) if prompt.name in orders else _WITHOUT_SLOT
            if reason:
                by_prompt[prompt.name] = NotApplicable(not_applicable=reason)
                continue
            labelled = [i for i, row in enumerate(rows) if prompt.name in row.labels]
            by_order = [_changes(mode, prompt, labelled, rows, scores, other, i) for i, other in enumerate(others)]
            by_prompt[prompt.name] = _shuffled_prompt(by_order)
            all_changes += [change for of_order in by_order for change in of_order]
        shuffled_modes[mode] = ShuffledMode(prompts=by_prompt)
    return ShuffledLabels(
        k=k,
        seed=seed,
        orders={name: tuple(prompt_orders) for name, prompt_orders in orders.items()},
        modes=shuffled_modes,
        flips=listed_flips(all_changes),
    )


def _changes(
    mode: Scoring,
    prompt: Prompt,
    labelled: Sequence[int],
    rows: Sequence[LabelledQuery],
    before: Sequence[RowScores],
    after: Sequence[RowScores],
    order: int,
) -> list[Change]:
    """The changes of the rows that are labelled for a prompt, by one order of the labels."""
    chosen = [rows[i] for i in labelled]
    return changes(mode, prompt, chosen, [before[i] for i in labelled], [after[i] for i in labelled], order)


def _shuffled_prompt(by_order: Sequence[Sequence[Change]]) -> ShuffledPrompt:
    """Of one prompt in one mode; by_order[k] are the changes by order number k."""
    all_changes = [change for of_order in by_order for change in of_order]
    n_flips = sum(change.is_flip for change in all_changes)
    accuracies = [float(np.mean([_is_right(change, 1) for change in of_order])) for of_order in by_order if of_order]
    configured = [_is_right(change, 0) for change in by_order[0]]
    return ShuffledPrompt(
        flip_rate=n_flips / len(all_changes) if all_changes else None,
        n_flips=n_flips,
        n_rows=len(configured),
        accuracy=ShuffledAccuracy(
            configured=float(np.mean(configured)) if configured else None,
            mean=float(np.mean(accuracies)) if accuracies else None,
            min=min(accuracies, default=None),
            max=max(accuracies, default=None),
        ),
        **dict(differences(all_changes)),
    )


def _is_right(change: Change, side: int) -> bool:
    """Whether the answer before (side 0) or after (side 1) is accepted."""
    return change.answers[side] in change.row.labels[change.prompt]
