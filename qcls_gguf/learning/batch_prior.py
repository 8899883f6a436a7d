"""A batch prior: biases from unlabelled queries, against labels that a prompt prefers whatever the text.

With q the mean over the queries of a prompt's probabilities, the bias of a label is -strength · ln q (Zhou et al. 2023,
"Batch Calibration"; there the strength is 1), less the mean over the labels. With strength 1 all labels become about
equally frequent, which is wrong where they are not: docs/real-models.md says what that costs.
"""

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from pydantic import Field

from ..config.fitted import PromptCalibration, calibration_text, prompt_hash
from ..config.prompt import LikelyMistake
from ..config.schema import Config
from ..config.scoring import Scoring
from ..data.rows import PLAIN, Reading, read_queries
from ..errors import ConfigError, PlanError
from ..evaluation.evaluate import probabilities_of
from ..opening import ClassifierOpener
from ..report.document import TEXT, Document, Table
from ..report.record import Record
from ..score.result import ModelInfo
from ..statistics import SMALLEST, FloatArray
from .calibrate import prompts_to_fit

LEAST_QUERIES = 50


class PromptPrior(Record):
    """The batch prior of one prompt."""

    scoring: Scoring = Field(description="as configured")
    bias: dict[str, float] = Field(description="by label, added to the scores")
    before: dict[str, float] = Field(description="by label, its share of the answers without the biases")
    after: dict[str, float] = Field(description="with them")


class BatchPriorRecord(Record):
    """Biases from unlabelled queries."""

    queries: str = Field(description="the file")
    n_queries: int = Field(description="queries that were labelled")
    n_left_out: int = Field(description="lines that have no query, or one that is too long")
    strength: float = Field(description="how much of the mean probabilities is taken away: 0 nothing, 1 all")
    model: ModelInfo
    warnings: tuple[LikelyMistake, ...] = Field(description="what is likely a mistake in the prompts")
    prompts: dict[str, PromptPrior] = Field(description="by prompt")


def fit_batch_prior(
    config: Config,
    queries: str,
    opener: ClassifierOpener,
    *,
    reading: Reading = PLAIN,
    names: Sequence[str] = (),
    strength: float = 0.75,
) -> tuple[BatchPriorRecord, str]:
    """The record that `qcls-gguf calibrate` prints as JSON for queries without labels, and the calibration file's text.

    queries: a file, or - for standard input; names: prompts, empty: all without a head.
    Raises ConfigError for fewer than LEAST_QUERIES queries and for what cannot be fitted; and what Classifier raises.
    """
    chosen = [prompt.name for prompt in prompts_to_fit(config, names)]
    lines = list(read_queries(queries, reading))
    answers = []
    with opener.open(config, calibrated=False) as classifier:
        for line in opener.progress("label", lines):
            if line.error is None:
                with suppress(PlanError):  # too long
                    answers.append(classifier.classify(line.text).results)
        model, compiled = classifier.model, classifier.prompts
    n_queries = len(answers)
    if n_queries < LEAST_QUERIES:
        raise ConfigError(f"`queries` {queries}: has {n_queries} queries, a prior needs {LEAST_QUERIES}")
    priors, entries = {}, {}
    for number in (number for number, prompt in enumerate(compiled) if prompt.name in chosen):
        prompt = compiled[number].settings
        p = probabilities_of([results[number] for results in answers])
        log_mean = np.log(np.maximum(p.mean(axis=0), SMALLEST))
        bias = np.round(strength * (log_mean.mean() - log_mean), 6)
        shares = (_shares(p), _shares(p * np.exp(bias)))
        by_label = dict(zip(prompt.labels, bias.tolist(), strict=True))
        priors[prompt.name] = PromptPrior(
            scoring=prompt.scoring,
            bias=by_label,
            before=dict(zip(prompt.labels, shares[0], strict=True)),
            after=dict(zip(prompt.labels, shares[1], strict=True)),
        )
        entries[prompt.name] = PromptCalibration(
            prompt_hash=prompt_hash(prompt),
            scoring=prompt.scoring,
            temperature=1.0,
            bias=by_label,
            fit={"n_queries": n_queries, "strength": strength},
        )
    record = BatchPriorRecord(
        queries=queries,
        n_queries=n_queries,
        n_left_out=len(lines) - n_queries,
        strength=strength,
        model=model,
        warnings=opener.warnings,
        prompts=priors,
    )
    return record, calibration_text(model.sha256, entries)


def _shares(p: FloatArray) -> list[float]:
    """(n_labels,) the shares of the rows that the labels answer."""
    shares: list[float] = (np.bincount(p.argmax(axis=1), minlength=p.shape[1]) / len(p)).tolist()
    return shares


def batch_prior_document(record: BatchPriorRecord) -> Document:
    """A row a label: its bias, and how often it answers without and with the biases."""
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
            )
        ],
    )
