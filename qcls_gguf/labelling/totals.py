"""What all shards come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from ..report.machine import peak_rss_bytes
from .counts import N_LISTED
from .job import Ready, Speeds
from .progress import Progress
from .records import LabellingRecord, PromptCounts, RunSpeed, ShardCounts
from .shards import PlannedInput


def labelling_record(
    out: Path,
    shards: Sequence[ShardCounts],
    planned: Sequence[PlannedInput],
    ready: Ready,
    *,
    n_before: int,
    progress: Progress,
    seconds: float,
    speeds: Speeds,
    peak: int | None,
) -> LabellingRecord:
    """The record of a run."""
    n_rows, n_computed = progress.n_rows, progress.n_computed
    own = peak_rss_bytes()
    return LabellingRecord(
        out=str(out),
        n_inputs=len(planned),
        n_shards=len(shards),
        n_shards_before=n_before,
        n_rows=sum(each.n_rows for each in shards),
        n_distinct=sum(each.n_distinct for each in shards),
        n_found=sum(each.n_found for each in shards),
        n_labelled=sum(each.n_labelled for each in shards),
        n_null=sum(each.n_null for each in shards),
        n_bad=sum(each.n_bad for each in shards),
        bad=tuple(islice(chain.from_iterable(each.bad for each in shards), N_LISTED)),
        n_bytes=sum(each.n_bytes for each in shards),
        prompts=tuple(
            _prompt([each.prompts[number] for each in shards], prompt.name)
            for number, prompt in enumerate(ready.prompts)
        ),
        speed=RunSpeed(
            seconds=seconds if n_rows else 0.0,
            n_rows=n_rows,
            n_computed=n_computed,
            rows_per_s=n_rows / seconds if n_rows else None,
            computed_per_s=n_computed / seconds if n_rows else None,
            batch=speeds.batch,
            measured=speeds.measured,
            roofline_per_s=speeds.roofline_per_s,
            roofline_error=speeds.roofline_error,
        ),
        peak_memory_bytes=max(own or 0, peak or 0) or None,
        model=ready.model,
        environment=ready.environment,
        warnings=ready.warnings,
    )


def _prompt(parts: Sequence[PromptCounts], name: str) -> PromptCounts:
    labels: Counter[str] = Counter()
    for part in parts:
        labels.update(part.labels)
    return PromptCounts(
        prompt=name,
        labels=dict(labels),
        n_abstained=sum(part.n_abstained for part in parts),
        sum_probability=sum(part.sum_probability for part in parts),
        histogram=tuple(np.sum([part.histogram for part in parts], axis=0).tolist()),
    )


def totals(record: LabellingRecord) -> dict[str, Any]:
    """What the manifest has of it."""
    names = ("n_inputs", "n_shards", "n_rows", "n_distinct", "n_labelled", "n_null", "n_bad", "n_bytes", "prompts")
    plain = record.to_dict()
    return {name: plain[name] for name in names}
