"""What is counted of a shard, and what its answers depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from ..config.schema import Config
from ..data.rows import NULL
from .answers import Answers, PromptLabels
from .blocks import BLANK, Queries
from .job import Task
from .records import N_BINS, BadInputRow, PromptCounts, ShardCounts

N_LISTED = 20
"""rows without labels that are listed"""


def answers_digest(prompts: str, adjustments: str, config: Config) -> str:
    """A sha256 of all that answers depend on beside the model: prompts, what calibrates them, what is a query, and the
    stages of a cascade, with their models.
    """
    names = ("max_query_tokens", "max_query_bytes", "query_tokens", "kv_type")
    parts = [prompts, adjustments, [[name, getattr(config.runtime, name)] for name in names], repr(config.cascade)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def shard_counts(
    task: Task, queries: Queries, answers: Answers, *, n_bytes: int, n_found: int, seconds: float
) -> ShardCounts:
    """What became of a shard's rows."""
    n_failed, bad = _bad_rows(task, queries, answers)
    n_null = sum(reason.endswith((NULL, BLANK)) for reason in queries.reasons.values())
    return ShardCounts(
        output=task.output,
        n_bytes=n_bytes,
        n_rows=len(queries.index),
        n_distinct=len(queries.texts),
        n_found=n_found,
        n_labelled=len(queries.index) - len(queries.reasons) - n_failed,
        n_null=n_null,
        n_bad=len(queries.reasons) - n_null + n_failed,
        bad=tuple(bad),
        prompts=tuple(_prompt_counts(answers.prompts, queries, answers)),
        seconds=seconds,
    )


def _bad_rows(task: Task, queries: Queries, answers: Answers) -> tuple[int, list[BadInputRow]]:
    """Rows whose queries were refused, and the first rows without labels."""
    listed = dict(islice(sorted(queries.reasons.items()), N_LISTED))
    n = 0
    if answers.reasons:
        index = queries.index
        rows = np.flatnonzero(np.isin(index, list(answers.reasons)))
        n = len(rows)
        for row in rows[:N_LISTED].tolist():
            listed[row] = f"{queries.name(row)}: {answers.reasons[int(index[row])]}"
    found = sorted(listed.items())[:N_LISTED]
    return n, [BadInputRow(path=task.shard.path, reason=reason) for _, reason in found]


def _prompt_counts(prompts: Sequence[PromptLabels], queries: Queries, answers: Answers) -> Iterator[PromptCounts]:
    index = queries.index
    rows = np.bincount(index[index >= 0], minlength=len(queries.texts))
    for number, prompt in enumerate(prompts):
        label, probability = answers.label[:, number], answers.probability[:, number]
        known = label >= 0
        n = np.bincount(label[known], rows[known], minlength=len(prompt.labels) + 1).astype(int).tolist()
        counts = dict(zip(prompt.labels, n, strict=False))
        if prompt.fallback is not None and n[-1]:
            counts[prompt.fallback] = counts.get(prompt.fallback, 0) + n[-1]
        bins = np.histogram(probability[known], N_BINS, (0.0, 1.0), weights=rows[known])[0]
        yield PromptCounts(
            prompt=prompt.name,
            labels=counts,
            n_abstained=n[-1],
            sum_probability=float(np.sum(probability[known] * rows[known])),
            histogram=tuple(bins.astype(int).tolist()),
        )
