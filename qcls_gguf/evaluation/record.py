"""An evaluation from its data to its record: read, score in one pass, time each mode on its own, count."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..classifier import Classifier
from ..config.calibration_file import read_calibration
from ..config.schema import Config
from ..config.scoring import EXACT_SCORINGS, Scoring
from ..data.labelled import BadRow, Labelled, LabelledQuery, read_labelled, refusal
from ..errors import ConfigError, ScoreError
from ..prompts.compiled import Prompt
from ..report.environment import environment, plain_config
from ..report.progress import OnProgress, counter
from ..score.adjustment import Adjustment, FloatArray, adjusted_scores
from ..score.calibration import adjustments_of, calibrates
from ..score.result import ModelInfo
from .batch_invariance import drift_record
from .label_order import check_slots, shuffle_record
from .modes import CALIBRATED, Reading, modes_table, non_finite_rows, worst_rows
from .passes import (
    KeptScores,
    PromptScores,
    RowScores,
    latency,
    not_applicable,
    pass_config,
    raw_config,
    refused_queries,
    score_rows,
)

_MAX_LISTED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What is to be evaluated."""

    config: Config
    path: Path
    """labelled queries, see read_labelled"""
    modes: tuple[Scoring, ...]
    audit: bool = False
    """compare with joint although no exact mode is evaluated"""
    skip_bad: bool = False
    """leave out rows that cannot be used, instead of refusing them"""
    n_latency: int = 200
    """queries that each mode is timed with; 0: none"""
    resume: Path | None = None
    """where each row's scores are kept"""
    offline: bool = False
    n_shuffles: int = 0
    """other orders of the labels that the templates list; 0: none"""
    drift: bool = False
    """score the rows again in batches, after other rows, with restored prefixes and after a fresh start"""
    seed: int = 0
    """of the orders of labels and rows"""

    @property
    def exact(self) -> bool:
        """Whether the pass computes the exact scores."""
        configured = [prompt.scoring for prompt in self.config.prompts] if calibrates(self.config) else []
        return self.audit or any(mode in EXACT_SCORINGS for mode in (*self.modes, *configured))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRows:
    """The usable rows of a file with their raw scores, and what scored them."""

    given: Labelled
    bad: list[BadRow]
    rows: list[LabelledQuery]
    scores: list[RowScores]
    prompts: Sequence[Prompt]
    adjustments: list[Adjustment]
    """what the configuration does to each prompt's raw scores"""
    model: ModelInfo

    def record(self) -> dict[str, Any]:
        """The data, as JSON has it."""
        return {
            "path": str(self.given.path),
            "sha256": self.given.sha256,
            "n_rows": len(self.rows),
            "n_bad": len(self.bad),
            "bad": [dataclasses.asdict(row) for row in self.bad[:_MAX_LISTED]],
        }


def evaluate(
    wanted: Evaluation,
    *,
    on_step: Callable[[str, str, float], None] | None = None,
    on_load: Callable[[float], None] | None = None,
    on_progress: OnProgress = lambda part, done, total: None,
) -> dict[str, Any]:
    """The record of an evaluation, as `qcls-gguf eval` prints it as JSON.

    Raises ConfigError for data that cannot be used, before anything is computed; and what Classifier raises.
    """
    if wanted.n_shuffles:
        check_slots(wanted.config)
    found = score_data(wanted, on_step=on_step, on_load=on_load, on_progress=on_progress)
    robustness = _robustness(wanted, found, on_progress)
    latencies = _latencies(wanted, found, on_progress)
    return {
        "data": found.record(),
        "config": plain_config(wanted.config),
        "model": dataclasses.asdict(found.model),
        "environment": environment(wanted.config, found.model).to_dict(),
        "modes": modes_table(
            wanted.modes, found.prompts, found.rows, found.scores, latencies, exact=wanted.exact,
            calibrated=_calibrated(wanted.config, found.adjustments),
        ),
        "worst": worst_rows(wanted.modes, found.prompts, found.rows, found.scores),
        "non_finite": non_finite_rows(found.rows, found.scores),
        **robustness,
    }  # fmt: skip


def score_data(
    wanted: Evaluation,
    *,
    check: Callable[[Labelled], None] = lambda given: None,
    on_step: Callable[[str, str, float], None] | None = None,
    on_load: Callable[[float], None] | None = None,
    on_progress: OnProgress = lambda part, done, total: None,
) -> ScoredRows:
    """Read the data and score it in one pass; check(data) may refuse it first. Raises as `evaluate` does."""
    config, calibration = pass_config(wanted.config), read_calibration(wanted.config)
    given = read_labelled(wanted.path, {prompt.name: prompt.labels for prompt in config.prompts})
    _check(wanted, given, given.bad)
    check(given)
    with Classifier.from_config(
        config, offline=wanted.offline, on_step=on_step, on_load=on_load, audit=wanted.exact
    ) as classifier:
        refused = refused_queries(classifier, given.rows)
        bad = sorted([*given.bad, *refused], key=lambda row: row.line)
        _check(wanted, given, bad)
        unusable = {row.line for row in bad}
        rows = [row for row in given.rows if row.line not in unusable]
        if calibration is not None:
            calibration.check_model(classifier.model.sha256)
        with _kept(wanted, config, classifier) as kept:

            def raw_scores(query: str) -> dict[str, FloatArray]:
                content_free = LabelledQuery(line=0, query=query, labels={})
                found = score_rows(classifier, [content_free], kept, lambda: None)[0]
                if found.prompts is None:
                    raise ScoreError(f"content-free query {query!r}: {found.error}")
                return {prompt.name: found.prompts[prompt.name].scores(prompt.scoring) for prompt in configured}

            configured = wanted.config.prompts
            return ScoredRows(
                given=given,
                bad=bad,
                rows=rows,
                adjustments=adjustments_of(configured, calibration, raw_scores),
                scores=score_rows(classifier, rows, kept, counter(on_progress, "score", len(rows))),
                prompts=classifier.prompts,
                model=classifier.model,
            )


def _calibrated(config: Config, adjustments: Sequence[Adjustment]) -> list[Reading] | None:
    """Each prompt's calibrated probabilities from its scores; none where the configuration calibrates nothing."""
    if not calibrates(config):
        return None

    def read(scores: PromptScores, scoring: Scoring, adjustment: Adjustment) -> npt.NDArray[np.float64]:
        return np.exp(adjusted_scores(scores.scores(scoring), adjustment), dtype=np.float64)

    return [
        partial(read, scoring=prompt.scoring, adjustment=adjustment)
        for prompt, adjustment in zip(config.prompts, adjustments, strict=True)
    ]


def _check(wanted: Evaluation, given: Labelled, bad: Sequence[BadRow]) -> None:
    n_rows = len(given.rows) + len(given.bad)
    if bad and (not wanted.skip_bad or len(bad) == n_rows):
        raise refusal(wanted.path, bad, n_rows)


def _kept(wanted: Evaluation, config: Config, classifier: Classifier) -> KeptScores | nullcontext[None]:
    if wanted.resume is None:
        return nullcontext()
    if wanted.resume.exists() and wanted.path.samefile(wanted.resume):
        raise ConfigError(f"`resume` {wanted.resume}: is the data itself: name a file of its own")
    return KeptScores(wanted.resume, config, classifier.model, exact=wanted.exact)


def _robustness(wanted: Evaluation, scored: ScoredRows, on_progress: OnProgress) -> dict[str, Any]:
    """The entries of what was asked for: `shuffle_labels`, `drift`."""
    found: dict[str, Any] = {}
    config, rows, scores = pass_config(wanted.config), scored.rows, scored.scores

    def score(rendering: Config, part: str) -> list[RowScores]:
        with (
            Classifier.from_config(rendering, offline=wanted.offline, audit=wanted.exact) as classifier,
            _kept(wanted, rendering, classifier) as kept,
        ):
            return score_rows(classifier, rows, kept, counter(on_progress, part, len(rows)))

    if wanted.n_shuffles:
        found["shuffle_labels"] = shuffle_record(
            config, wanted.modes, scored.prompts, rows, scores, k=wanted.n_shuffles, seed=wanted.seed, score=score
        )
    if wanted.drift:
        with Classifier.from_config(config, offline=wanted.offline, audit=wanted.exact) as classifier:
            found["drift"] = drift_record(
                classifier, wanted.modes, rows, scores, seed=wanted.seed, counter=partial(counter, on_progress)
            )
    return found


def _latencies(wanted: Evaluation, scored: ScoredRows, on_progress: OnProgress) -> dict[str, dict[str, Any]]:
    """Each mode by a classifier that computes nothing else, on queries spread evenly over the rows."""
    queries = [row.query for row, found in zip(scored.rows, scored.scores, strict=True) if found.prompts]
    n = min(wanted.n_latency, len(queries))
    sample = [queries[i * len(queries) // n] for i in range(n)]
    configs: dict[str, tuple[Config, str]] = {}
    for mode in wanted.modes:
        names = [prompt.name for prompt in scored.prompts if not not_applicable(prompt, mode)]
        if names:
            configs[mode] = (raw_config(wanted.config, mode, names), f"scoring {mode}")
    if calibrates(wanted.config):
        configs[CALIBRATED] = (wanted.config, "its scorings, calibrated as configured,")
    return {
        mode: latency(config, what, sample, offline=wanted.offline, on_query=counter(on_progress, f"time {mode}", n))
        for mode, (config, what) in configs.items()
        if sample
    }
