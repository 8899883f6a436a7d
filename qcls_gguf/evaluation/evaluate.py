"""An evaluation from its data to its record: rows → passes → probabilities by mode → statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

from ..config.calibration_file import read_calibration
from ..config.schema import Config, raw_config
from ..config.scoring import EXACT_SCORINGS, TREE, Scoring
from ..data.labelled import PLAIN_COLUMNS, BadRow, LabelledColumns, LabelledData, LabelledQuery, read_labelled
from ..errors import ScoreError
from ..opening import ClassifierOpener
from ..prompts.compiled import Prompt
from ..report.environment import environment
from ..score.adjustment import Adjustment, adjustments_of, calibrates
from ..score.result import ModelInfo, Result
from ..statistics import AnyFloats
from . import passes
from .checks import check_statements, stated_calibration
from .metrics import compared_prompts, mode_statistics, worst_rows
from .records import DataRecord, EvaluationRecord, data_record

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSettings:
    """What is evaluated, and how."""

    config: Config
    path: Path
    """labelled queries, see read_labelled"""
    columns: LabelledColumns = PLAIN_COLUMNS
    """which columns of them are read"""
    modes: tuple[Scoring, ...]
    skip_bad: bool = False
    """leave out rows that cannot be used, instead of refusing them"""
    check_error: bool = False
    """check what the calibration states"""

    @property
    def exact(self) -> bool:
        """Whether the pass computes the exact scores: for a mode, or for what the configuration adds to the modes."""
        configured = [prompt.scoring for prompt in self.config.prompts] if calibrates(self.config) else []
        return any(mode in EXACT_SCORINGS for mode in (*self.modes, *configured))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRows:
    """The usable rows of a file with their raw scores, and the prompts and model that they are of."""

    data: DataRecord
    non_finite: list[BadRow]
    """rows whose scores are not finite"""
    rows: list[LabelledQuery]
    """all others"""
    tables: dict[str, passes.ScoreTable]
    """their scores, by prompt"""
    prompts: Sequence[Prompt]
    adjustments: list[Adjustment]
    """what the configuration does to each prompt's raw scores"""
    model: ModelInfo


def evaluate(settings: EvaluationSettings, opener: ClassifierOpener) -> EvaluationRecord:
    """Evaluate, and return the record that `qcls-gguf eval` prints as JSON.

    Raises ConfigError for data that cannot be used, before anything is computed; and what Classifier raises.
    """
    config = opener.rendered(settings.config)
    settings = replace(settings, config=config)
    stated = stated_calibration(read_calibration(config)) if settings.check_error else None
    scored = score_data(settings, opener)
    prompts, rows, tables = scored.prompts, scored.rows, scored.tables
    truths = [passes.truth_of(prompt, rows) for prompt in prompts]
    scorings = {scoring: passes.probabilities_of(scoring, prompts, tables) for scoring in settings.modes}
    modes: dict[str, passes.Probabilities] = dict(scorings.items())
    if calibrates(config):
        modes[passes.CALIBRATED] = passes.calibrated_probabilities(config.prompts, tables, scored.adjustments)

    def ask(asked: Config, part: str, read: Callable[[Result], T]) -> list[T]:
        with opener.open(asked, quiet=True) as classifier:
            return [read(classifier.classify(row.query)) for row in opener.each(part, rows)]

    check = None
    if config.heads:
        answers = passes.score_tables(prompts, ask(config, "score the heads", passes.answered_scores))
        modes[passes.HEADS] = passes.probabilities_of(TREE, prompts, answers)
    if stated is not None:
        check = check_statements(stated, rows, ask(config, "check", attrgetter("results")), truths)
    common = compared_prompts(settings.modes, prompts)
    return EvaluationRecord(
        data=scored.data,
        config=config,
        model=scored.model,
        warnings=opener.warnings,
        environment=environment(config),
        compared_prompts=common,
        modes={mode: mode_statistics(mode, found, truths, tables, common) for mode, found in modes.items()},
        worst=tuple(worst_rows(scorings, truths, rows)),
        non_finite=tuple(scored.non_finite),
        check=check,
    )


def score_data(
    settings: EvaluationSettings, opener: ClassifierOpener, check: Callable[[LabelledData], None] = lambda data: None
) -> ScoredRows:
    """Read the data and score it in one pass; check(data) may refuse it first. Raises as `evaluate` does.

    In that pass every prompt is scored by `tree`, neither calibrated nor abstaining, from which an audit gives the
    scores of every mode.
    """
    config, prompts = raw_config(settings.config, TREE), settings.config.prompts
    calibration = read_calibration(settings.config)
    data = read_labelled(settings.path, {prompt.name: prompt.labels for prompt in prompts}, settings.columns)
    passes.usable_rows(data, skip_bad=settings.skip_bad)
    check(data)
    with opener.open(config, audit=settings.exact) as classifier:
        rows, bad = passes.usable_rows(data, classifier, skip_bad=settings.skip_bad)
        if calibration is not None:
            calibration.check_model(classifier.model.sha256)

        def raw_scores(query: str) -> dict[str, AnyFloats]:
            try:
                result = classifier.classify(query)
            except ScoreError as e:
                raise ScoreError(f"content-free query {query!r}: {e}") from None
            tables = passes.score_tables(classifier.prompts, [passes.row_scores(result)])
            return {prompt.name: tables[prompt.name].by_scoring[prompt.scoring][0] for prompt in prompts}

        adjustments = adjustments_of(prompts, calibration, raw_scores)
        scored, scores, non_finite = [], [], []
        for row in opener.each("score", rows):
            try:
                scores.append(passes.row_scores(classifier.classify(row.query)))
                scored.append(row)
            except ScoreError as e:
                non_finite.append(BadRow(row.line, str(e)))
        return ScoredRows(
            data=data_record(data, len(scored), bad),
            non_finite=non_finite,
            rows=scored,
            adjustments=adjustments,
            tables=passes.score_tables(classifier.prompts, scores),
            prompts=classifier.prompts,
            model=classifier.model,
        )
