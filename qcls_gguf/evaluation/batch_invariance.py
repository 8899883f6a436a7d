"""Whether an answer depends on what else a classifier does: rows of an evaluation, scored again in other company."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from ..classifier import Classifier
from ..config.scoring import Scoring
from ..data.labelled import LabelledQuery
from ..prompts.compiled import Prompt
from .changes import Change, changes, differences, listed_flips
from .passes import RowScores, not_applicable, row_scores

N_BATCH = 4
N_RESTORED = 100
"""Rows before which the prefixes are computed anew: each time costs as much as a start-up."""


def drift_record(
    classifier: Classifier,
    modes: Sequence[Scoring],
    rows: Sequence[LabelledQuery],
    scores: Sequence[RowScores],
    *,
    seed: int,
    counter: Callable[[str, int], Callable[[], None]],
) -> dict[str, Any]:
    """The entry `drift` of an evaluation: rows with finite scores against themselves, over all modes and prompts.

    classifier: one that has answered nothing yet. counter(part, n) gives what to call after each of n rows.
    """
    known = [(row, found) for row, found in zip(rows, scores, strict=True) if found.prompts]
    rows, scores = [row for row, _ in known], [found for _, found in known]
    queries = [row.query for row in rows]
    every = range(len(rows))
    n_restored = min(N_RESTORED, len(rows))
    spread = [i * len(rows) // n_restored for i in range(n_restored)]
    fresh = _one_by_one(classifier, queries, counter("drift: fresh", len(rows)))
    cases = {
        "batches": (every, _batches(classifier, queries, counter("drift: batches", len(rows)))),
        "traffic": (every, _traffic(classifier, queries, seed, counter("drift: traffic", len(rows)))),
        "restored": (
            spread,
            _restored(classifier, [queries[i] for i in spread], counter("drift: restored", n_restored)),
        ),
        "fresh": (every, fresh),
    }
    return {
        case: _statistics(classifier.prompts, modes, [rows[i] for i in chosen], [scores[i] for i in chosen], after)
        for case, (chosen, after) in cases.items()
    }


def _one_by_one(classifier: Classifier, queries: Sequence[str], on_row: Callable[[], None]) -> list[RowScores]:
    found = []
    for query in queries:
        found.append(row_scores(classifier.classify(query)))
        on_row()
    return found


def _batches(classifier: Classifier, queries: Sequence[str], on_row: Callable[[], None]) -> list[RowScores]:
    found = []
    for start in range(0, len(queries), N_BATCH):
        for result in classifier.classify_batch(queries[start : start + N_BATCH]):
            found.append(row_scores(result))
            on_row()
    return found


def _traffic(classifier: Classifier, queries: Sequence[str], seed: int, on_row: Callable[[], None]) -> list[RowScores]:
    """In a shuffled order, another row of a batch of its own size before each."""
    generator = random.Random(seed)
    found: dict[int, RowScores] = {}
    for i in generator.sample(range(len(queries)), len(queries)):
        classifier.classify_batch(generator.choices(queries, k=generator.randint(1, N_BATCH)))
        found[i] = row_scores(classifier.classify(queries[i]))
        on_row()
    return [found[i] for i in range(len(queries))]


def _restored(classifier: Classifier, queries: Sequence[str], on_row: Callable[[], None]) -> list[RowScores]:
    found = []
    for query in queries:
        classifier.engine.restore()
        found.append(row_scores(classifier.classify(query)))
        on_row()
    return found


def _statistics(
    prompts: Sequence[Prompt],
    modes: Sequence[Scoring],
    rows: Sequence[LabelledQuery],
    before: Sequence[RowScores],
    after: Sequence[RowScores],
) -> dict[str, Any]:
    found: list[Change] = []
    for mode in modes:
        for prompt in prompts:
            if not not_applicable(prompt, mode):
                found += changes(mode, prompt, rows, before, after)
    return {
        "n_rows": len(rows),
        "n_answers": len(found),
        "n_flips": sum(change.is_flip for change in found),
        **differences(found),
        "flips": listed_flips(found),
    }
