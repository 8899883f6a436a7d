"""A batch prior: biases from unlabelled queries, against labels that a prompt prefers whatever the text.

With q the mean over the queries of a prompt's probabilities, the bias of a label is -strength · ln q (Zhou et al. 2023,
"Batch Calibration"; there the strength is 1), less the mean over the labels. With strength 1 all labels become about
equally frequent, which is wrong where they are not: docs/real-models.md says what that costs.
"""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from pathlib import Path

import numpy as np

from ..config.calibration_file import PromptCalibration, calibration_text, prompt_hash
from ..config.prompt import CONTENT_FREE_QUERIES, LikelyMistake
from ..config.schema import Config
from ..config.scoring import Scoring
from ..config.words import shown
from ..data.rows import Reading, Row, read_queries
from ..errors import ConfigError, PlanError
from ..opening import ClassifierOpener
from ..report.document import TEXT, Document, Paragraph, Table
from ..report.files import check_writable
from ..report.record import Record
from ..score.result import ModelInfo
from ..statistics import SMALLEST, FloatArray
from .calibrate import prompts_to_fit

LEAST_QUERIES = 50
_SKEWED = 0.65
"""of `steady`: chosen on three tasks of docs/real-models.md and tried on five"""


class PromptPrior(Record):
    """The batch prior of one prompt."""

    scoring: Scoring
    """as configured"""
    bias: dict[str, float]
    """by label, added to the scores"""
    before: dict[str, float]
    """by label, the share of the queries that it answers without the biases"""
    after: dict[str, float]
    """with them"""
    steady: float | None
    """share of the queries that the label which is answered most keeps under the content-free prior; from 0.65 on it is
    likely right for most of them, and the biases harm; null for prompts without an answer cue, where it says nothing"""


class BatchPriorRecord(Record):
    """Biases from unlabelled queries."""

    queries: str
    """the file"""
    n_queries: int
    """queries that were labelled"""
    n_left_out: int
    """lines that have no query, or one that is too long"""
    strength: float
    """how much of the mean probabilities is taken away: 0 nothing, 1 all"""
    model: ModelInfo
    warnings: tuple[LikelyMistake, ...]
    """what is likely a mistake in the prompts"""
    written: str
    """the calibration file"""
    prompts: dict[str, PromptPrior]
    """by prompt"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BatchPriorSettings:
    """The queries, the strength and the output of a batch prior."""

    config: Config
    queries: str
    """a file, or - for standard input"""
    reading: Reading
    out: Path
    names: tuple[str, ...] = ()
    """prompts; empty: all"""
    strength: float = 0.75
    force: bool = False
    """overwrite a file that is at `out`"""


def fit_batch_prior(settings: BatchPriorSettings, opener: ClassifierOpener) -> tuple[BatchPriorRecord, str]:
    """The record that `qcls-gguf calibrate` prints as JSON for queries without labels, and the calibration file's text.

    Raises ConfigError for fewer than LEAST_QUERIES queries and for what cannot be fitted or written; and what
    Classifier raises.
    """
    prompts_to_fit(settings.config, settings.names)
    check_writable(settings.out, "`out`", {"`queries`": Path(settings.queries)}, force=settings.force)
    lines = list(read_queries(settings.queries, settings.reading))
    config = opener.rendered(settings.config)
    prompts = prompts_to_fit(config, settings.names)
    plain = tuple(prompt.changed(min_confidence=None, fallback=None) for prompt in prompts)
    found: dict[str, list[list[float]]] = {prompt.name: [] for prompt in prompts}
    asked = [*lines, *map(Row, CONTENT_FREE_QUERIES)]
    raw = config.changed(prompts=plain, calibration=None, heads=None)
    with opener.open(raw) as classifier:
        for line in opener.each("label", asked):
            if line.error is None:
                with suppress(PlanError):  # too long
                    for answer in classifier.classify(line.text).results:
                        found[answer.prompt].append([score.probability for score in answer.scores])
        model = classifier.model
    n_queries = len(found[prompts[0].name]) - len(CONTENT_FREE_QUERIES)
    if n_queries < LEAST_QUERIES:
        raise ConfigError(f"`queries` {settings.queries}: has {n_queries} queries, a prior needs {LEAST_QUERIES}")
    without_cue = {prompt.name for prompt in settings.config.prompts if prompt.is_chat and not prompt.cue}
    priors, entries = {}, {}
    for prompt in prompts:
        p, empty = np.split(np.array(found[prompt.name]), [n_queries])
        log_mean = np.log(np.maximum(p.mean(axis=0), SMALLEST))
        bias = np.round(settings.strength * (log_mean.mean() - log_mean), 6)
        answered = (p, p * np.exp(bias))
        before, after = (dict(zip(prompt.labels, _shares(each), strict=True)) for each in answered)
        top = max(prompt.labels, key=lambda label: before[label])
        steady = round(_shares(p / np.maximum(empty.mean(axis=0), SMALLEST))[prompt.labels.index(top)], 4)
        by_label = dict(zip(prompt.labels, bias.tolist(), strict=True))
        priors[prompt.name] = PromptPrior(
            scoring=prompt.scoring,
            bias=by_label,
            before=before,
            after=after,
            steady=None if prompt.name in without_cue else steady,
        )
        entries[prompt.name] = PromptCalibration(
            prompt_hash=prompt_hash(prompt),
            scoring=prompt.scoring,
            temperature=1.0,
            bias=by_label,
            fit={"n_queries": n_queries, "strength": settings.strength},
        )
    record = BatchPriorRecord(
        queries=settings.queries,
        n_queries=n_queries,
        n_left_out=len(lines) - n_queries,
        strength=settings.strength,
        model=model,
        warnings=opener.warnings,
        written=str(settings.out),
        prompts=priors,
    )
    return record, calibration_text(model.sha256, entries)


def _shares(p: FloatArray) -> list[float]:
    """(n_labels,) the share of the rows that each label answers."""
    shares: list[float] = (np.bincount(p.argmax(axis=1), minlength=p.shape[1]) / len(p)).tolist()
    return shares


def _skew(name: str, prior: PromptPrior) -> str | None:
    """The warning that one label is likely right for most queries."""
    if (prior.steady or 0) < _SKEWED:
        return None
    top = max(prior.before, key=lambda label: prior.before[label])
    return (
        f"{name}: {prior.before[top]:.0%} of the answers are {shown(top)}, and {prior.steady:.0%} without what the "
        "prompt prefers whatever the query: it is likely right for most, and these biases harm: try labelled rows"
    )


def batch_prior_document(record: BatchPriorRecord) -> Document:
    """A row for each label: its bias, and how often it answers without and with the biases."""
    return Document(
        title="Batch prior",
        parts=[
            Table(
                columns={"prompt": TEXT, "label": TEXT, "bias": "+.3f", "answers before": ".1%", "after": ".1%"},
                rows=[
                    [name, label, bias, prior.before[label], prior.after[label]]
                    for name, prior in record.prompts.items()
                    for label, bias in prior.bias.items()
                ],
                note="If one label is right for most of the queries (80 % or more), leave the prior out: it makes "
                "frequent labels rarer.",
            ),
            *(Paragraph(why, "warning") for why in map(_skew, record.prompts, record.prompts.values()) if why),
        ],
    )
