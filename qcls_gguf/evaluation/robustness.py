"""The same rows scored again: with the labels in other orders, and beside or after other requests.

A row's difference is the largest |difference| of the probabilities of a prompt's labels. A flip is a row whose most
probable label is another one; of equally probable labels the first counts.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..classifier import Classifier
from ..config.prompt import PromptConfig
from ..config.schema import Config
from ..config.scoring import Scoring
from ..config.template import LABEL_SLOTS, LABELS_SLOT, expand
from ..data.labelled import LabelledQuery
from ..errors import ConfigError
from ..prompts.compiled import Prompt
from ..score.result import Result
from ..statistics import FloatArray, mean
from .kept_scores import RowScores
from .passes import Probabilities, Truth, known_rows, not_applicable, probabilities_of, row_scores, score_tables
from .records import (
    BatchInvariance,
    Differences,
    Flip,
    InvarianceCase,
    NotApplicable,
    ShuffledAccuracy,
    ShuffledLabels,
    ShuffledMode,
    ShuffledPrompt,
)

N_BATCH = 4
"""Queries of a request in the case `batches`, and at most in the requests between those of `traffic`."""
N_RESTORED = 100
"""Rows before which the prefixes are computed anew: each time costs as much as a start-up."""
N_LISTED = 10
"""Flips that a record lists; its counts are of all flips."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What changed in the answers of some rows for one prompt in one mode."""

    differences: FloatArray
    """(n,) of the rows with scores both before and after"""
    flips: list[Flip]


def changes(
    mode: Scoring,
    prompt: Prompt,
    rows: Sequence[LabelledQuery],
    before: FloatArray,
    after: FloatArray,
    rendering: int | None = None,
) -> Changes:
    """Compare the probabilities of the rows, (n_rows, n_labels) each; rendering: the order of labels of the second."""
    known = known_rows(before, after)
    p, q = before[known], after[known]
    difference, answer, other = np.abs(p - q).max(axis=1), p.argmax(axis=1), q.argmax(axis=1)
    flips = []
    for i in np.flatnonzero(answer != other):
        row, (next_highest, highest) = rows[known[i]], np.sort(p[i])[-2:]
        flips.append(
            Flip(
                mode=mode,
                prompt=prompt.name,
                line=row.line,
                query=row.query,
                rendering=rendering,
                answer=prompt.labels[answer[i]],
                probability=float(highest),
                margin=float(highest - next_highest),
                other_answer=prompt.labels[other[i]],
                other_probability=float(q[i].max()),
                difference=float(difference[i]),
            )
        )
    return Changes(differences=difference, flips=flips)


def differences(all_changes: Iterable[Changes]) -> Differences:
    """The largest and the mean difference."""
    values = [value for each in all_changes for value in each.differences.tolist()]
    return Differences(
        largest_probability_difference=max(values, default=None), mean_probability_difference=mean(values)
    )


def listed_flips(all_changes: Iterable[Changes]) -> tuple[Flip, ...]:
    """The N_LISTED flips whose probabilities moved furthest, furthest first."""
    flips = [flip for each in all_changes for flip in each.flips]
    return tuple(sorted(flips, key=lambda flip: -flip.difference)[:N_LISTED])


# other orders of the labels


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
    modes: Mapping[Scoring, Probabilities],
    rows: Sequence[LabelledQuery],
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
        prompt.name: label_orders(prompt.labels, k, f"{seed} {prompt.name}")
        for prompt in config.prompts
        if prompt.has_labels_slot
    }
    others = [score_tables(prompts, score(with_order(config, orders, i), f"shuffle {i + 1} of {k}")) for i in range(k)]
    by_mode: dict[Scoring, ShuffledMode] = {}
    all_changes: list[Changes] = []
    for mode, found in modes.items():
        by_prompt: dict[str, ShuffledPrompt | NotApplicable] = {}
        for truth in truths:
            prompt, name = truth.prompt, truth.prompt.name
            reason = not_applicable(prompt, mode) if name in orders else f"its text has no {LABELS_SLOT} slot"
            if reason:
                by_prompt[name] = NotApplicable(not_applicable=reason)
                continue
            labelled, before = [rows[i] for i in truth.index], found[name][truth.index]
            after = [other[name].probability(mode)[truth.index] for other in others]
            of_prompt = [changes(mode, prompt, labelled, before, p, order) for order, p in enumerate(after)]
            by_prompt[name] = _shuffled_prompt(of_prompt, truth, before, after)
            all_changes += of_prompt
        by_mode[mode] = ShuffledMode(prompts=by_prompt)
    return ShuffledLabels(
        k=k,
        seed=seed,
        orders={name: tuple(prompt_orders) for name, prompt_orders in orders.items()},
        modes=by_mode,
        flips=listed_flips(all_changes),
    )


def _shuffled_prompt(
    by_order: Sequence[Changes], truth: Truth, before: FloatArray, after: Sequence[FloatArray]
) -> ShuffledPrompt:
    """Of one prompt in one mode; by_order and after: by each of the orders."""
    n_answers, n_flips = sum(len(each.differences) for each in by_order), sum(len(each.flips) for each in by_order)
    accuracies = [_accuracy(p, truth, known_rows(before, p)) for p in after]
    found = [accuracy for accuracy in accuracies if accuracy is not None]
    return ShuffledPrompt(
        flip_rate=n_flips / n_answers if n_answers else None,
        n_flips=n_flips,
        n_rows=len(by_order[0].differences),
        accuracy=ShuffledAccuracy(
            configured=_accuracy(before, truth, known_rows(before, after[0])),
            mean=mean(found),
            min=min(found, default=None),
            max=max(found, default=None),
        ),
        **dict(differences(by_order)),
    )


def _accuracy(p: FloatArray, truth: Truth, known: Sequence[int]) -> float | None:
    return mean(truth.accepted[known, p[known].argmax(axis=1)])


# other requests


def batch_invariance(
    classifier: Classifier,
    modes: Sequence[Scoring],
    rows: Sequence[LabelledQuery],
    scores: Sequence[RowScores],
    *,
    seed: int,
    counter: Callable[[str, int], Callable[[], None]],
) -> BatchInvariance:
    """Score rows once more in four ways, and compare with the scores that they have; over all modes and prompts.

    classifier: one that has answered nothing yet; seed: of the order in `traffic`; counter(part, n) returns what is
    called after each of n rows. Rows without scores are left out.
    """
    chosen = [i for i, row in enumerate(scores) if row.prompts]
    rows, scores = [rows[i] for i in chosen], [scores[i] for i in chosen]
    queries = [row.query for row in rows]
    ways = {  # the classifier is fresh only for the first
        "fresh": _one_by_one(classifier, queries),
        "batches": _in_batches(classifier, queries),
        "traffic": _in_traffic(classifier, queries, seed),
        "restored": _restored(classifier, queries),
    }
    cases = {}
    for name, answers in ways.items():
        n = min(N_RESTORED, len(rows)) if name == "restored" else len(rows)
        on_row = counter(f"batch invariance: {name}", n)
        again: dict[int, RowScores] = {}
        for i, result in answers:
            again[i] = row_scores(result)
            on_row()
        before = score_tables(classifier.prompts, [scores[i] for i in again])
        after = score_tables(classifier.prompts, list(again.values()))
        found = []
        for mode in modes:
            first, second = (probabilities_of(mode, classifier.prompts, each) for each in (before, after))
            applicable = [prompt for prompt in classifier.prompts if prompt.name in first]
            again_rows = [rows[i] for i in again]
            found += [
                changes(mode, prompt, again_rows, first[prompt.name], second[prompt.name]) for prompt in applicable
            ]
        cases[name] = InvarianceCase(
            n_rows=len(again),
            n_answers=sum(len(each.differences) for each in found),
            n_flips=sum(len(each.flips) for each in found),
            **dict(differences(found)),
            flips=listed_flips(found),
        )
    return BatchInvariance(**cases)


def _one_by_one(classifier: Classifier, queries: Sequence[str]) -> Iterator[tuple[int, Result]]:
    for i, query in enumerate(queries):
        yield i, classifier.classify(query)


def _in_batches(classifier: Classifier, queries: Sequence[str]) -> Iterator[tuple[int, Result]]:
    for start in range(0, len(queries), N_BATCH):
        yield from enumerate(classifier.classify_batch(queries[start : start + N_BATCH]), start)


def _in_traffic(classifier: Classifier, queries: Sequence[str], seed: int) -> Iterator[tuple[int, Result]]:
    """In a shuffled order, each after a request with one to N_BATCH other queries."""
    generator = random.Random(seed)
    for i in generator.sample(range(len(queries)), len(queries)):
        classifier.classify_batch(generator.choices(queries, k=generator.randint(1, N_BATCH)))
        yield i, classifier.classify(queries[i])


def _restored(classifier: Classifier, queries: Sequence[str]) -> Iterator[tuple[int, Result]]:
    """At most N_RESTORED spread evenly, each after its prefixes were computed anew."""
    n = min(N_RESTORED, len(queries))
    for i in range(n):
        classifier.engine.restore()
        index = i * len(queries) // n
        yield index, classifier.classify(queries[index])
