"""The same rows scored again with the labels listed in other orders.

A row's difference is the largest |difference| of the probabilities of a prompt's labels. A flip is a row whose most
probable label is another one; of equally probable labels the first counts.
"""

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
from ..errors import ConfigError
from ..statistics import FloatArray, mean
from .passes import Probabilities, RowScores, Truth, not_applicable, score_tables
from .records import NotApplicable, ShuffledAccuracy, ShuffledLabels, ShuffledMode, ShuffledPrompt


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


def _orders(prompt: PromptConfig, k: int, seed: str) -> tuple[tuple[str, ...], ...]:
    """The k orders that a prompt is tried in: first those over which its scores are averaged, if it has several."""
    own = prompt.orders[:k] if prompt.label_orders > 1 else ()
    return (*own, *label_orders(prompt.labels, k - len(own), seed))


def with_order(config: Config, orders: Mapping[str, Sequence[Sequence[str]]], index: int) -> Config:
    """The configuration with the labels listed in order number `index` of each prompt in `orders`."""

    def reordered(prompt: PromptConfig) -> PromptConfig:
        labels = orders[prompt.name][index] if prompt.name in orders else prompt.labels
        texts = prompt.words.in_order(labels).texts
        slots = {slot: texts[slot] for slot in LABEL_SLOTS}
        return dataclasses.replace(prompt, prompt_template=expand(prompt.template, slots), label_orders=1)

    return dataclasses.replace(config, prompts=tuple(map(reordered, config.prompts)))


def shuffled_labels(
    config: Config,
    modes: Mapping[Scoring, Probabilities],
    truths: Sequence[Truth],
    *,
    k: int,
    seed: int,
    score: Callable[[Config, str], Sequence[RowScores]],
) -> ShuffledLabels:
    """Score the rows with the labels in k other orders, and compare with their probabilities in the configured one.

    config and modes are as configured; score(other_config, part) scores all rows by another configuration.
    """
    prompts = [truth.prompt for truth in truths]
    orders = {
        prompt.name: _orders(prompt, k, f"{seed} {prompt.name}") for prompt in config.prompts if prompt.has_labels_slot
    }
    others = [score_tables(prompts, score(with_order(config, orders, i), f"shuffle {i + 1} of {k}")) for i in range(k)]
    by_mode: dict[Scoring, ShuffledMode] = {}
    for mode, found in modes.items():
        by_prompt: dict[str, ShuffledPrompt | NotApplicable] = {}
        for truth in truths:
            name = truth.prompt.name
            reason = not_applicable(truth.prompt, mode) if name in orders else f"its text has no {LABELS_SLOT} slot"
            if reason:
                by_prompt[name] = NotApplicable(not_applicable=reason)
                continue
            before = found[name][truth.index]
            after = np.array([other[name].probability(mode)[truth.index] for other in others])
            by_prompt[name] = _shuffled_prompt(truth, before, after)
        by_mode[mode] = ShuffledMode(prompts=by_prompt)
    return ShuffledLabels(k=k, seed=seed, orders=orders, modes=by_mode)


def _shuffled_prompt(truth: Truth, before: FloatArray, after: FloatArray) -> ShuffledPrompt:
    """The record of one prompt in one mode; before: (n, n_labels) of its labelled rows, after: (k, n, n_labels)."""
    differences = np.abs(after - before).max(axis=2)
    is_flip = after.argmax(axis=2) != before.argmax(axis=1)
    rows = np.arange(len(before))
    accuracies = [mean(truth.accepted[rows, p.argmax(axis=1)]) for p in (before, *after)]
    others = [accuracy for accuracy in accuracies[1:] if accuracy is not None]
    return ShuffledPrompt(
        flip_rate=mean(is_flip),
        n_flips=int(is_flip.sum()),
        n_rows=len(before),
        accuracy=ShuffledAccuracy(
            configured=accuracies[0], mean=mean(others), min=min(others, default=None), max=max(others, default=None)
        ),
        accuracy_by_order=tuple(accuracies[1:]),
        largest_probability_difference=float(differences.max()) if differences.size else None,
        mean_probability_difference=mean(differences),
    )
