"""An evaluation from its data to its record: read, score in one pass, time each mode on its own, summarise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..classifier import Classifier
from ..config.calibration_file import read_calibration
from ..config.raw import raw_config
from ..config.schema import Config
from ..config.scoring import EXACT_SCORINGS, Scoring
from ..data.labelled import PLAIN_COLUMNS, BadRow, Labelled, LabelledColumns, LabelledQuery, read_labelled, refusal
from ..errors import ConfigError, ScoreError
from ..opening import ClassifierOpener
from ..prompts.compiled import Prompt
from ..report.environment import environment
from ..report.progress import OnProgress, counter
from ..score.adjustment import Adjustment, FloatArray, adjusted_scores
from ..score.calibration import adjustments_of, calibrates
from ..score.result import ModelInfo
from .batch_invariance import batch_invariance
from .cascade import cascade_record
from .kept_scores import KeptScores
from .label_order import check_slots, shuffled_labels
from .modes import CALIBRATED, CASCADE, ToProbability, compared_prompts, mode_statistics, non_finite_rows, worst_rows
from .passes import (
    PromptScores,
    RowScores,
    answered_scores,
    not_applicable,
    refused_queries,
    request_cost,
    score_rows,
)
from .records import DataRecord, EvaluationRecord, RequestCost
from .robustness_records import BatchInvariance, ShuffledLabels

_MAX_LISTED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSettings:
    """What is evaluated, and how."""

    config: Config
    path: Path
    """labelled queries, see read_labelled"""
    columns: LabelledColumns = PLAIN_COLUMNS
    """which columns of them are read"""
    modes: tuple[Scoring, ...]
    audit: bool = False
    """compare with joint although no exact mode is evaluated"""
    skip_bad: bool = False
    """leave out rows that cannot be used, instead of refusing them"""
    n_latency: int = 200
    """queries that each mode is timed with; 0: none"""
    resume: Path | None = None
    """a file that keeps each row's scores, so that an interrupted evaluation goes on from there"""
    n_shuffles: int = 0
    """other orders of the labels that the templates list; 0: none"""
    batch_invariance: bool = False
    """score the rows again in batches, after other rows, with prefixes computed anew and after a fresh start"""
    seed: int = 0
    """of the orders of labels and rows"""

    @property
    def exact(self) -> bool:
        """Whether the pass computes the exact scores."""
        is_compared = calibrates(self.config) or self.config.cascade is not None
        configured = [prompt.scoring for prompt in self.config.prompts] if is_compared else []
        return self.audit or any(mode in EXACT_SCORINGS for mode in (*self.modes, *configured))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRows:
    """The usable rows of a file with their raw scores, and the prompts and model that they are of."""

    data: Labelled
    bad: list[BadRow]
    """rows that cannot be used, as written or by this model"""
    rows: list[LabelledQuery]
    scores: list[RowScores]
    prompts: Sequence[Prompt]
    adjustments: list[Adjustment]
    """what the configuration does to each prompt's raw scores"""
    model: ModelInfo

    def data_record(self) -> DataRecord:
        """The data as a record has it."""
        return DataRecord(
            path=str(self.data.path),
            sha256=self.data.sha256,
            n_rows=len(self.rows),
            n_bad=len(self.bad),
            bad=tuple(self.bad[:_MAX_LISTED]),
        )


def evaluate(
    settings: EvaluationSettings,
    opener: ClassifierOpener,
    *,
    on_progress: OnProgress = lambda part, done, total: None,
) -> EvaluationRecord:
    """Evaluate, and return the record that `qcls-gguf eval` prints as JSON.

    Raises ConfigError for data that cannot be used, before anything is computed; and what Classifier raises.
    """
    if settings.n_shuffles:
        check_slots(settings.config)
    settings = replace(settings, config=opener.rendered(settings.config))
    scored = score_data(settings, opener, on_progress=on_progress)
    config, modes, rows, scores = settings.config, settings.modes, scored.rows, scored.scores
    shuffled = _shuffled_labels(settings, opener, scored, on_progress) if settings.n_shuffles else None
    invariance = _batch_invariance(settings, opener, scored, on_progress) if settings.batch_invariance else None
    cascade = _cascade_answers(settings, opener, scored, on_progress) if config.cascade else None
    configured = _calibrated(config, scored.adjustments)
    return EvaluationRecord(
        data=scored.data_record(),
        config=config,
        model=scored.model,
        warnings=opener.warnings,
        environment=environment(config, scored.model),
        compared_prompts=compared_prompts(modes, scored.prompts),
        modes=mode_statistics(
            modes,
            scored.prompts,
            rows,
            scores,
            _request_costs(settings, opener, scored, on_progress),
            exact=settings.exact,
            calibrated=configured if calibrates(config) else None,
            cascade=cascade,
        ),
        cascade=cascade_record(scored.prompts, cascade, scores, configured) if cascade else None,
        worst=worst_rows(modes, scored.prompts, rows, scores),
        non_finite=non_finite_rows(rows, scores),
        shuffle_labels=shuffled,
        batch_invariance=invariance,
    )


def score_data(
    settings: EvaluationSettings,
    opener: ClassifierOpener,
    *,
    check: Callable[[Labelled], None] = lambda data: None,
    on_progress: OnProgress = lambda part, done, total: None,
) -> ScoredRows:
    """Read the data and score it in one pass; check(data) may refuse it first. Raises as `evaluate` does.

    In that pass every prompt is scored by `tree`, neither calibrated nor abstaining, from which an audit gives the
    scores of every mode.
    """
    config, calibration = raw_config(settings.config, "tree"), read_calibration(settings.config)
    data = read_labelled(settings.path, {prompt.name: prompt.labels for prompt in config.prompts}, settings.columns)
    _refuse_bad_rows(settings, data, data.bad)
    check(data)
    with opener.open(config, audit=settings.exact) as classifier:
        refused = refused_queries(classifier, data.rows)
        bad = sorted([*data.bad, *refused], key=lambda row: row.line)
        _refuse_bad_rows(settings, data, bad)
        bad_lines = {row.line for row in bad}
        rows = [row for row in data.rows if row.line not in bad_lines]
        if calibration is not None:
            calibration.check_model(classifier.model.sha256)
        with _kept_scores(settings, config, classifier) as kept:

            def raw_scores(query: str) -> dict[str, FloatArray]:
                content_free = LabelledQuery(line=0, query=query, labels={})
                row_scores = score_rows(classifier, [content_free], kept, lambda: None)[0]
                if row_scores.prompts is None:
                    raise ScoreError(f"content-free query {query!r}: {row_scores.error}")
                return {
                    prompt.name: row_scores.prompts[prompt.name].scores(prompt.scoring)
                    for prompt in settings.config.prompts
                }

            return ScoredRows(
                data=data,
                bad=bad,
                rows=rows,
                adjustments=adjustments_of(settings.config.prompts, calibration, raw_scores),
                scores=score_rows(classifier, rows, kept, counter(on_progress, "score", len(rows))),
                prompts=classifier.prompts,
                model=classifier.model,
            )


def _calibrated(config: Config, adjustments: Sequence[Adjustment]) -> list[ToProbability]:
    """For each prompt how its calibrated probabilities are computed from its scores."""

    def probability(scores: PromptScores, scoring: Scoring, adjustment: Adjustment) -> npt.NDArray[np.float64]:
        return np.exp(adjusted_scores(scores.scores(scoring), adjustment), dtype=np.float64)

    return [
        partial(probability, scoring=prompt.scoring, adjustment=adjustment)
        for prompt, adjustment in zip(config.prompts, adjustments, strict=True)
    ]


def _refuse_bad_rows(settings: EvaluationSettings, data: Labelled, bad: Sequence[BadRow]) -> None:
    """Raise ConfigError for bad rows, unless they are to be left out and others remain."""
    n_rows = len(data.rows) + len(data.bad)
    if bad and (not settings.skip_bad or len(bad) == n_rows):
        raise refusal(settings.path, bad, n_rows)


def _kept_scores(
    settings: EvaluationSettings, config: Config, classifier: Classifier
) -> KeptScores | nullcontext[None]:
    if settings.resume is None:
        return nullcontext()
    if settings.resume.exists() and settings.path.samefile(settings.resume):
        raise ConfigError(f"`resume` {settings.resume}: is the data itself: name a file of its own")
    return KeptScores(settings.resume, config, classifier.model, exact=settings.exact)


def _shuffled_labels(
    settings: EvaluationSettings, opener: ClassifierOpener, scored: ScoredRows, on_progress: OnProgress
) -> ShuffledLabels:
    def score(config: Config, part: str) -> list[RowScores]:
        with (
            opener.open(config, audit=settings.exact, quiet=True) as classifier,
            _kept_scores(settings, config, classifier) as kept,
        ):
            return score_rows(classifier, scored.rows, kept, counter(on_progress, part, len(scored.rows)))

    return shuffled_labels(
        raw_config(settings.config, "tree"),
        settings.modes,
        scored.prompts,
        scored.rows,
        scored.scores,
        k=settings.n_shuffles,
        seed=settings.seed,
        score=score,
    )


def _batch_invariance(
    settings: EvaluationSettings, opener: ClassifierOpener, scored: ScoredRows, on_progress: OnProgress
) -> BatchInvariance:
    with opener.open(raw_config(settings.config, "tree"), audit=settings.exact, quiet=True) as classifier:
        return batch_invariance(
            classifier,
            settings.modes,
            scored.rows,
            scored.scores,
            seed=settings.seed,
            counter=partial(counter, on_progress),
        )


def _cascade_answers(
    settings: EvaluationSettings, opener: ClassifierOpener, scored: ScoredRows, on_progress: OnProgress
) -> list[RowScores]:
    """What all stages together answer to the rows."""
    with (
        opener.open(settings.config, quiet=True) as classifier,
        _kept_scores(settings, settings.config, classifier) as kept,
    ):
        on_row = counter(on_progress, "score the cascade", len(scored.rows))
        return score_rows(classifier, scored.rows, kept, on_row, answered_scores)


def _request_costs(
    settings: EvaluationSettings, opener: ClassifierOpener, scored: ScoredRows, on_progress: OnProgress
) -> dict[str, RequestCost]:
    """Each mode's cost, by a classifier that computes nothing else, on queries spread evenly over the rows."""
    queries = [row.query for row, scores in zip(scored.rows, scored.scores, strict=True) if scores.prompts]
    n = min(settings.n_latency, len(queries))
    sample = [queries[i * len(queries) // n] for i in range(n)]
    if not sample:
        return {}
    configs: dict[str, tuple[Config, str]] = {}
    for mode in settings.modes:
        names = [prompt.name for prompt in scored.prompts if not not_applicable(prompt, mode)]
        if names:
            configs[mode] = (raw_config(settings.config, mode, names), f"scoring {mode}")
    if calibrates(settings.config):
        last = replace(settings.config, cascade=None)
        configs[CALIBRATED] = (last, "its scorings, calibrated as configured,")
    if settings.config.cascade is not None:
        configs[CASCADE] = (settings.config, "all stages of the cascade")
    return {
        mode: request_cost(opener, config, scoring, sample, counter(on_progress, f"time {mode}", n))
        for mode, (config, scoring) in configs.items()
    }
