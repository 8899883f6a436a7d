"""Batch invariance: whether an answer depends on what else the classifier computes with it or before it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from ..classifier import Classifier
from ..config.scoring import Scoring
from ..data.labelled import LabelledQuery
from ..prompts.compiled import Prompt
from .changes import Change, changes, differences, listed_flips
from .passes import RowScores, not_applicable, row_scores
from .robustness_records import BatchInvariance, InvarianceCase

N_BATCH = 4
"""Queries of a request in the case `batches`, and at most in the requests between those of `traffic`."""
N_RESTORED = 100
"""Rows before which the prefixes are computed anew: each time costs as much as a start-up."""


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
    with_scores = [(row, score) for row, score in zip(rows, scores, strict=True) if score.prompts]
    rows, scores = [row for row, _ in with_scores], [score for _, score in with_scores]
    queries = [row.query for row in rows]
    n = len(rows)
    n_restored = min(N_RESTORED, n)
    evenly_spread = [i * n // n_restored for i in range(n_restored)]

    def case(again: Sequence[RowScores], chosen: Sequence[int] = range(n)) -> InvarianceCase:
        before = [scores[i] for i in chosen]
        return _case(classifier.prompts, modes, [rows[i] for i in chosen], before, again)

    # the classifier is fresh only for the first of the four
    fresh = _one_by_one(classifier, queries, counter("batch invariance: fresh", n))
    batches = _in_batches(classifier, queries, counter("batch invariance: batches", n))
    traffic = _in_traffic(classifier, queries, seed, counter("batch invariance: traffic", n))
    some_queries = [queries[i] for i in evenly_spread]
    restored = _restored(classifier, some_queries, counter("batch invariance: restored", n_restored))
    return BatchInvariance(
        batches=case(batches), traffic=case(traffic), restored=case(restored, evenly_spread), fresh=case(fresh)
    )


def _one_by_one(classifier: Classifier, queries: Sequence[str], on_row: Callable[[], None]) -> list[RowScores]:
    scores = []
    for query in queries:
        scores.append(row_scores(classifier.classify(query)))
        on_row()
    return scores


def _in_batches(classifier: Classifier, queries: Sequence[str], on_row: Callable[[], None]) -> list[RowScores]:
    scores = []
    for start in range(0, len(queries), N_BATCH):
        for result in classifier.classify_batch(queries[start : start + N_BATCH]):
            scores.append(row_scores(result))
            on_row()
    return scores


def _in_traffic(
    classifier: Classifier, queries: Sequence[str], seed: int, on_row: Callable[[], None]
) -> list[RowScores]:
    """In a shuffled order, each after a request with one to N_BATCH other queries."""
    generator = random.Random(seed)
    scores: dict[int, RowScores] = {}
    for i in generator.sample(range(len(queries)), len(queries)):
        classifier.classify_batch(generator.choices(queries, k=generator.randint(1, N_BATCH)))
        scores[i] = row_scores(classifier.classify(queries[i]))
        on_row()
    return [scores[i] for i in range(len(queries))]


def _restored(classifier: Classifier, queries: Sequence[str], on_row: Callable[[], None]) -> list[RowScores]:
    """Each after its prefixes were computed anew."""
    scores = []
    for query in queries:
        classifier.engine.restore()
        scores.append(row_scores(classifier.classify(query)))
        on_row()
    return scores


def _case(
    prompts: Sequence[Prompt],
    modes: Sequence[Scoring],
    rows: Sequence[LabelledQuery],
    before: Sequence[RowScores],
    after: Sequence[RowScores],
) -> InvarianceCase:
    all_changes: list[Change] = []
    for mode in modes:
        for prompt in prompts:
            if not not_applicable(prompt, mode):
                all_changes += changes(mode, prompt, rows, before, after)
    return InvarianceCase(
        n_rows=len(rows),
        n_answers=len(all_changes),
        n_flips=sum(change.is_flip for change in all_changes),
        **dict(differences(all_changes)),
        flips=listed_flips(all_changes),
    )
