"""One pass over labelled queries: from one decode a query to its scores in every mode."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..classifier import Classifier
from ..config.schema import Config
from ..config.scoring import Scoring
from ..data.labelled import BadRow, LabelledQuery
from ..errors import ConfigError, PlanError, ScoreError
from ..opening import ClassifierOpener, without_kept_queries
from ..prompts.compiled import Prompt
from ..prompts.trie import build_trie
from ..score.log_space import softmax
from ..score.result import PromptResult, Result
from .records import RequestCost

_N_WARM_UP = 5
"""Requests that are not timed."""
_TINY = np.finfo(np.float64).tiny


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptScores:
    """One query's scores for one prompt's labels, in the order of the configuration."""

    tree: list[float]
    """log-probabilities among the labels"""
    joint: list[float] | None = None
    """log p(label | prompt); None where the pass was not exact"""
    mean: list[float] | None = None
    """joint per token"""
    label_mass: float | None = None
    """the probability that lies on the labels at all; None where the pass was not exact"""
    stage: str | None = None
    """of a cascade, which stage answered"""

    def scores(self, mode: Scoring) -> npt.NDArray[np.float64]:
        """(n_labels,) the mode's scores; those of `first_token` only up to a constant, which no probability depends on.

        Where all labels differ in their first token, `tree` and `first_token` are softmaxes over the same logits.
        """
        return np.array(self.tree if mode in ("tree", "first_token") else self.joint if mode == "joint" else self.mean)

    def probability(self, mode: Scoring) -> npt.NDArray[np.float64]:
        """(n_labels,) the mode's probabilities."""
        scores = self.scores(mode)
        if mode in ("tree", "first_token"):
            return np.exp(scores)
        return np.asarray(softmax(scores), np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowScores:
    """One query's scores by prompt, or why there are none."""

    prompts: dict[str, PromptScores] | None = None
    error: str | None = None


class ScoreStore(Protocol):
    """Scores by query that outlive a pass."""

    def get(self, query: str) -> RowScores | None:
        """The scores of a query, or None where there are none."""

    def add(self, query: str, scores: RowScores) -> None:
        """Keep a query's scores."""


def not_applicable(prompt: Prompt, mode: Scoring) -> str | None:
    """Why a prompt cannot have a mode; None where it can."""
    if mode == "first_token":
        try:
            build_trie(prompt.labels, prompt.label_tokens, -1, mode)
        except ConfigError as e:
            return str(e)
    return None


def refused_queries(classifier: Classifier, rows: Sequence[LabelledQuery]) -> list[BadRow]:
    """The rows whose query the classifier would refuse; nothing is computed."""
    refused = []
    for row in rows:
        try:
            classifier.check(row.query)
        except PlanError as e:
            refused.append(BadRow(row.line, str(e)))
    return refused


def row_scores(result: Result) -> RowScores:
    """The scores in a result of a classifier whose prompts are all scored by `tree`."""
    return RowScores(prompts={answer.prompt: _prompt_scores(answer) for answer in result.results})


def answered_scores(result: Result) -> RowScores:
    """What a result answers: the probabilities as they are calibrated, by their logarithms, in place of `tree`."""
    return RowScores(
        prompts={
            answer.prompt: PromptScores(
                tree=np.log(np.maximum([score.probability for score in answer.scores], _TINY)).tolist(),
                stage=answer.stage,
            )
            for answer in result.results
        }
    )


def score_rows(
    classifier: Classifier,
    rows: Sequence[LabelledQuery],
    kept: ScoreStore | None,
    on_row: Callable[[], None],
    scores_of: Callable[[Result], RowScores] = row_scores,
) -> list[RowScores]:
    """The scores of all rows; those that `kept` has are not computed again. on_row() is called after each row."""
    scores = []
    for row in rows:
        of_row = None if kept is None else kept.get(row.query)
        if of_row is None:
            of_row = _score(classifier, row.query, scores_of)
            if kept is not None:
                kept.add(row.query, of_row)
        scores.append(of_row)
        on_row()
    return scores


def _score(classifier: Classifier, query: str, scores_of: Callable[[Result], RowScores]) -> RowScores:
    try:
        result = classifier.classify(query)
    except ScoreError as e:
        return RowScores(error=str(e))
    return scores_of(result)


def _prompt_scores(answer: PromptResult) -> PromptScores:
    tree = [score.score for score in answer.scores]
    if (audit := answer.audit) is None:
        return PromptScores(tree=tree)
    return PromptScores(tree=tree, joint=list(audit.joint), mean=list(audit.mean), label_mass=audit.label_mass)


def request_cost(
    opener: ClassifierOpener, config: Config, scoring: str, queries: Sequence[str], on_query: Callable[[], None]
) -> RequestCost:
    """Time and tokens of requests, by a classifier of its own; scoring: the configuration's scoring, in words."""
    total_ms, n_tokens = [], []
    with opener.open(without_kept_queries(config), quiet=True) as classifier:
        for query in queries[:_N_WARM_UP]:
            classifier.classify(query)
        for query in queries:
            result = classifier.classify(query)
            total_ms.append(result.total_ms)
            n_tokens.append(result.counts.n_tokens_new)
            on_query()
    return RequestCost(
        mean_ms=statistics.fmean(total_ms),
        p50_ms=statistics.median(total_ms),
        p90_ms=float(np.quantile(total_ms, 0.9)),
        n_tokens_new=statistics.fmean(n_tokens),
        n_queries=len(queries),
        n_prompts=len(config.prompts),
        measured_by=f"a warm classifier with {scoring} and no audit, one query a request",
    )
