"""An evaluation from its data to its record: read, score in one pass, time each mode on its own, count."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .classify import Classifier
from .config import Config
from .environment import environment, plain_config
from .errors import ConfigError
from .eval_modes import modes_table, non_finite_rows, worst_rows
from .eval_pass import (
    KeptScores,
    RowScores,
    latency,
    not_applicable,
    pass_config,
    refused_queries,
    score_rows,
)
from .labelled import BadRow, Labelled, LabelledQuery, read_labelled, refusal
from .labels import EXACT_SCORINGS, Scoring
from .prompt import Prompt

OnProgress = Callable[[str, int, int], None]
"""(part, done, total)"""

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

    @property
    def exact(self) -> bool:
        """Whether the pass computes the exact scores."""
        return self.audit or any(mode in EXACT_SCORINGS for mode in self.modes)


def evaluate(
    wanted: Evaluation,
    *,
    on_step: Callable[[str, str, float], None] | None = None,
    on_load: Callable[[float], None] | None = None,
    on_progress: OnProgress = lambda part, done, total: None,
) -> dict[str, Any]:
    """The record of an evaluation, as `qcls-gguf eval --format json` prints it.

    Raises ConfigError for data that cannot be used, before anything is computed; and what Classifier raises.
    """
    config = pass_config(wanted.config)
    given = read_labelled(wanted.path, {prompt.name: prompt.labels for prompt in config.prompts})
    _check(wanted, given, given.bad)
    with Classifier.from_config(
        config, offline=wanted.offline, on_step=on_step, on_load=on_load, audit=wanted.exact
    ) as classifier:
        refused = refused_queries(classifier, given.rows)
        bad = sorted([*given.bad, *refused], key=lambda row: row.line)
        _check(wanted, given, bad)
        unusable = {row.line for row in bad}
        rows = [row for row in given.rows if row.line not in unusable]
        model, prompts = classifier.model, classifier.prompts
        with _kept(wanted, config, classifier) as kept:
            scores = score_rows(classifier, rows, kept, _counter(on_progress, "score", len(rows)))
    record: dict[str, Any] = {
        "data": {
            "path": str(wanted.path),
            "sha256": given.sha256,
            "n_rows": len(rows),
            "n_bad": len(bad),
            "bad": [dataclasses.asdict(row) for row in bad[:_MAX_LISTED]],
        },
        "config": plain_config(wanted.config),
        "model": dataclasses.asdict(model),
        "environment": environment(config),
    }
    latencies = _latencies(wanted, prompts, rows, scores, on_progress)
    return {
        **record,
        "modes": modes_table(wanted.modes, prompts, rows, scores, latencies, exact=wanted.exact),
        "worst": worst_rows(wanted.modes, prompts, rows, scores),
        "non_finite": non_finite_rows(rows, scores),
    }


def _check(wanted: Evaluation, given: Labelled, bad: Sequence[BadRow]) -> None:
    n_rows = len(given.rows) + len(given.bad)
    if bad and (not wanted.skip_bad or len(bad) == n_rows):
        raise refusal(wanted.path, bad, n_rows)


def _kept(wanted: Evaluation, config: Config, classifier: Classifier) -> KeptScores | nullcontext[None]:
    if wanted.resume is None:
        return nullcontext()
    if wanted.resume.exists() and wanted.path.samefile(wanted.resume):
        raise ConfigError(f"--resume {wanted.resume}: is the data itself: name a file of its own")
    return KeptScores(wanted.resume, config, classifier.model, exact=wanted.exact)


def _latencies(
    wanted: Evaluation,
    prompts: Sequence[Prompt],
    rows: Sequence[LabelledQuery],
    scores: Sequence[RowScores],
    on_progress: OnProgress,
) -> dict[Scoring, dict[str, Any]]:
    """Each mode by a classifier that computes nothing else, on queries spread evenly over the rows."""
    queries = [row.query for row, found in zip(rows, scores, strict=True) if found.prompts]
    n = min(wanted.n_latency, len(queries))
    sample = [queries[i * len(queries) // n] for i in range(n)]
    found = {}
    for mode in wanted.modes:
        names = [prompt.name for prompt in prompts if not not_applicable(prompt, mode)]
        if sample and names:
            on_query = _counter(on_progress, f"time {mode}", n)
            found[mode] = latency(wanted.config, mode, names, sample, offline=wanted.offline, on_query=on_query)
    return found


def _counter(on_progress: OnProgress, part: str, total: int) -> Callable[[], None]:
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        on_progress(part, done, total)

    return count
