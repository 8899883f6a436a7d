"""What a run tells: of a shard when it is done, and of all shards in the end; and what is shown of it."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import chain, islice

import numpy as np
from pydantic import Field

from ..config.words import counted
from ..data.rows import NULL
from ..report.document import TEXT, Document, Paragraph, Section, Table, facts, measured, provenance
from ..report.environment import Environment
from ..report.record import Record
from ..score.result import ModelInfo
from .answers import Answers
from .blocks import BLANK, Queries

_N_LISTED = 20
"""rows without labels that are listed"""
_N_SHOWN = 40
"""labels that a terminal shows"""
_MIB = 1 << 20


class RowCounts(Record):
    """What became of rows."""

    n_rows: int = Field(description="rows of the input, and of the output")
    n_distinct: int = Field(description="distinct queries among them, counted shard by shard")
    n_found: int = Field(description="of these, the number whose answers earlier shards or a stopped run had")
    n_labelled: int = Field(description="rows with labels")
    n_null: int = Field(description="rows whose query is null or blank")
    n_bad: int = Field(description="rows that could not be labelled for another reason")
    n_cut: int = Field(
        default=0,
        description="of the rows with labels, the number whose query was too long, so that a part of it was labelled "
        "(long_queries)",
    )
    bad: tuple[str, ...] = Field(description="the first rows without labels: input, number, what is wrong")
    labels: dict[str, dict[str, int]] = Field(description="by prompt the rows by label; the fallback is among them")
    n_bytes: int = Field(description="of the output")


class ShardCounts(RowCounts):
    """What became of a shard's rows; a line of `done.jsonl`."""

    output: str = Field(description="the file's name")


class RunSpeed(Record):
    """How fast rows were labelled in this run."""

    seconds: float = Field(description="from the first shard's beginning to the last one's end")
    n_rows: int = Field(description="rows that were labelled")
    n_computed: int = Field(description="distinct queries that were computed for them")
    batch: int = Field(description="queries of a decode")


class LabellingRecord(RowCounts):
    """A run of `qcls-gguf label`, with what earlier runs on the same output did."""

    out: str = Field(description="file or folder of the output")
    n_inputs: int = Field(description="files")
    n_shards: int = Field(description="of all inputs")
    n_shards_before: int = Field(description="of these, the number that earlier runs had done")
    speed: RunSpeed
    model: ModelInfo
    environment: Environment
    warnings: tuple[str, ...] = Field(default=(), description="what is likely a mistake in the prompts")


def shard_counts(path: str, output: str, queries: Queries, answers: Answers, *, n_bytes: int) -> ShardCounts:
    """What became of a shard's rows."""
    reasons, asked = queries.reasons | answers.failures(queries), queries.index[queries.index >= 0]
    n_null = sum(reason.endswith((NULL, BLANK)) for reason in queries.reasons.values())
    rows, labels = np.bincount(asked, minlength=len(queries.texts)), dict[str, dict[str, int]]()
    for prompt, label in zip(answers.columns.prompts, answers.label.T, strict=True):
        known = label >= 0
        n = np.bincount(label[known], rows[known], minlength=len(prompt.labels) + 1).astype(int).tolist()
        counts = labels[prompt.name] = dict(zip(prompt.labels, n, strict=False))
        if prompt.fallback is not None and n[-1]:
            counts[prompt.fallback] = counts.get(prompt.fallback, 0) + n[-1]
    return ShardCounts(
        output=output,
        n_bytes=n_bytes,
        n_rows=len(queries.index),
        n_distinct=len(queries.texts),
        n_found=answers.n_found,
        n_labelled=len(queries.index) - len(reasons),
        n_null=n_null,
        n_bad=len(reasons) - n_null,
        n_cut=int(answers.is_cut[asked].sum()),
        bad=tuple(f"{path}: {reasons[row]}" for row in sorted(reasons)[:_N_LISTED]),
        labels=labels,
    )


def total_counts(shards: Sequence[RowCounts]) -> RowCounts:
    """What became of the rows of all shards, of which there is at least one."""
    labels: dict[str, Counter[str]] = defaultdict(Counter)
    for shard in shards:
        for prompt, counts in shard.labels.items():
            labels[prompt].update(counts)
    names = ("n_rows", "n_distinct", "n_found", "n_labelled", "n_null", "n_bad", "n_cut", "n_bytes")
    return RowCounts(
        **{name: sum(getattr(shard, name) for shard in shards) for name in names},
        bad=tuple(islice(chain.from_iterable(shard.bad for shard in shards), _N_LISTED)),
        labels={prompt: dict(counts) for prompt, counts in labels.items()},
    )


def labelling_document(record: LabellingRecord) -> Document:
    """The rows, the prompts' labels, the speed, and the first rows without labels."""
    n_more = record.n_null + record.n_bad - len(record.bad)
    columns = {"prompt": TEXT, "label": TEXT, "rows": ",", "share": ".1%"}
    labels = [
        [prompt, label, n, n / record.n_labelled]
        for prompt, counts in record.labels.items()
        for label, n in sorted(counts.items(), key=lambda item: -item[1])
        if n
    ]
    return Document(
        title="Labelled rows",
        parts=[
            facts(_facts(record)),
            Section(title="Conditions", parts=[facts(provenance(record.model, record.environment))], on_terminal=False),
            Table(columns=columns, rows=labels, n_terminal=_N_SHOWN),
            *(Paragraph(row, "warning") for row in record.bad),
            Paragraph(f"and {n_more:,} more rows without labels", "warning") if n_more > 0 else None,
        ],
    )


def _facts(record: LabellingRecord) -> dict[str, str]:
    speed = record.speed
    labelled = f"{record.n_labelled:,} labelled"
    if record.n_cut:
        labelled += f" ({record.n_cut:,} by a part of the query)"
    left_out = f", {record.n_null:,} null or blank, {record.n_bad:,} refused" if record.n_null + record.n_bad else ""
    found = {
        "rows": f"{record.n_rows:,} of {counted(record.n_inputs, 'file')}: {labelled}{left_out}",
        "distinct": f"{record.n_distinct:,} queries, counted in each of {counted(record.n_shards, 'shard')}; "
        f"{record.n_found:,} of them known before",
        "output": f"{record.out}: {record.n_bytes / _MIB:,.1f} MiB",
    }
    if speed.n_rows:
        rate = f"{measured(speed.n_computed / speed.seconds)} queries/s, {speed.batch} a decode"
        computed = f"{speed.n_computed:,} distinct queries computed, {rate}"
        found["this run"] = f"{speed.n_rows:,} rows in {speed.seconds:,.0f} s: {computed}"
    return found
