"""A run of `label` as text on a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from ..config.words import counted, printable
from ..report.numbers import NO_VALUE, measured, percent
from ..report.tables import Table, fact_table, terminal_table
from .progress import duration
from .records import LabellingRecord, PromptCounts

N_TOP = 5
_MIB = 1 << 20


def label_table_of(prompt: PromptCounts, n_top: int | None = None) -> list[str]:
    """A prompt's most frequent labels with their shares."""
    total = sum(prompt.labels.values())
    ranked = sorted(prompt.labels.items(), key=lambda each: -each[1])
    return [f"{label} {percent(n / total)}" for label, n in ranked[:n_top] if n]


def prompts_table(record: LabellingRecord, n_top: int | None = N_TOP) -> Table:
    """A row a prompt: its labels, abstentions, and mean confidence."""
    rows = []
    for prompt in record.prompts:
        n = record.n_labelled
        rows.append(
            [
                prompt.prompt,
                ", ".join(label_table_of(prompt, n_top)) or NO_VALUE,
                f"{prompt.n_abstained:,}",
                percent(prompt.sum_probability / n if n else None),
            ]
        )
    return Table(columns=("prompt", "labels", "abstained", "mean confidence"), rows=rows, n_text=2)


def speeds_table(record: LabellingRecord) -> Table:
    """A row for each size of batches that was measured."""
    measured_ = record.speed.measured
    first = measured_[0].queries_per_s if measured_ else 1.0
    rows = [
        [str(each.size), measured(each.queries_per_s), f"{each.queries_per_s / first:.2f}", f"{each.n_queries}"]
        for each in measured_
    ]
    if record.speed.roofline_per_s is not None:
        most = record.speed.roofline_per_s
        rows.append(["roofline", measured(most), f"{most / first:.2f}", NO_VALUE])
    return Table(columns=("queries a decode", "queries/s", "× one by one", "measured with"), rows=rows)


def facts(record: LabellingRecord) -> list[tuple[str, str]]:
    """What was done, in lines."""
    speed = record.speed
    left_out = f", {record.n_null:,} null or blank, {record.n_bad:,} refused" if record.n_null + record.n_bad else ""
    found = [
        ("rows", f"{record.n_rows:,} of {counted(record.n_inputs, 'file')}: {record.n_labelled:,} labelled{left_out}"),
        (
            "distinct",
            f"{record.n_distinct:,} queries, counted in each of {counted(record.n_shards, 'shard')}; "
            f"{record.n_found:,} of them from the cache",
        ),
        ("output", f"{record.out}: {record.n_bytes / _MIB:,.1f} MiB"),
    ]
    if speed.rows_per_s is not None and speed.computed_per_s is not None:
        found.append(
            (
                "this run",
                f"{speed.n_rows:,} rows in {duration(speed.seconds)}: {measured(speed.rows_per_s)} rows/s, "
                f"{measured(speed.computed_per_s)} computed queries/s, {speed.batch} a decode",
            )
        )
    if record.peak_memory_bytes:
        found.append(("memory", f"{record.peak_memory_bytes / _MIB:,.0f} MiB at most"))
    if speed.roofline_error:
        found.append(("roofline", speed.roofline_error))
    return found


def labelling_table(record: LabellingRecord) -> Group:
    """The rows, the prompts' labels, the speed, and the first rows without labels."""
    parts: list[RenderableType] = [fact_table(facts(record)), terminal_table(prompts_table(record))]
    if record.speed.measured:
        parts.append(terminal_table(speeds_table(record)))
    for row in record.bad:
        parts.append(Text(printable(f"{row.path}: {row.reason}"), style="yellow"))
    if (n := record.n_null + record.n_bad) > len(record.bad):
        parts.append(Text(f"and {n - len(record.bad):,} more rows without labels", style="yellow"))
    return Group(*parts)
