"""What a run of `label` shows: rows, labels, speed, and the first rows without labels."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ..config.words import counted
from ..report.document import TEXT, Document, Facts, Figure, Paragraph, Section, Table, measured, percent, provenance
from .records import N_BINS, LabellingRecord, PromptCounts
from .worker import duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_N_TOP = 5
_MOST_BARS = 30
_MIB = 1 << 20


def labelling_document(record: LabellingRecord) -> Document:
    """The rows, the prompts' labels, the speed, and the first rows without labels."""
    n_more = record.n_null + record.n_bad - len(record.bad)
    conditions = provenance(record.model, record.environment)
    return Document(
        title="Labelled rows",
        parts=[
            Facts(_facts(record)),
            Section(title="Conditions", parts=[Facts(conditions)], on_terminal=False),
            _prompts(record),
            _speeds(record),
            *(_prompt(prompt) for prompt in record.prompts),
            *(Paragraph(f"{each.path}: {each.reason}", "warning") for each in record.bad),
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
        found["this run"] = f"{speed.n_rows:,} rows in {duration(speed.seconds)}"
    if speed.queries_per_s is not None:
        found["speed"] = (
            f"{measured(speed.queries_per_s)} queries/s: {speed.n_computed:,} distinct ones computed, {speed.batch} a "
            "decode"
        )
    if record.peak_memory_bytes:
        found["memory"] = f"{record.peak_memory_bytes / _MIB:,.0f} MiB at most"
    return found


def _ranked(prompt: PromptCounts) -> list[tuple[str, int, float]]:
    """Labels with their rows and shares, the most frequent first."""
    total = sum(prompt.labels.values()) or 1
    return sorted(((label, n, n / total) for label, n in prompt.labels.items()), key=lambda each: -each[1])


def _prompts(record: LabellingRecord) -> Table:
    rows = []
    for prompt in record.prompts:
        top = ", ".join(f"{label} {percent(share)}" for label, n, share in _ranked(prompt)[:_N_TOP] if n)
        confidence = prompt.sum_probability / record.n_labelled if record.n_labelled else None
        rows.append([prompt.prompt, top or None, prompt.n_abstained, confidence])
    return Table(
        columns={"prompt": TEXT, "labels": TEXT, "abstained": ",", "mean confidence": ".1%"},
        rows=rows,
        note="Mean confidence: of the most probable labels' probabilities, over all labelled rows.",
    )


def _speeds(record: LabellingRecord) -> Table:
    """A row for each size of batches that was measured."""
    found = record.speed.measured
    rows = [[each.size, measured(each.queries_per_s), each.queries_per_s / found[0].queries_per_s, each.n_queries]
            for each in found]  # fmt: skip
    return Table(
        columns={"queries a decode": "d", "queries/s": "s", "× one by one": ".2f", "measured with": "d"},
        rows=rows,
        note="A sample of the queries at the start.",
    )


def _prompt(prompt: PromptCounts) -> Section:
    rows_by_label = Table(columns={"label": TEXT, "rows": ",", "share": ".1%"}, rows=_ranked(prompt))
    n_bars = min(len(prompt.labels), _MOST_BARS)
    return Section(
        title=prompt.prompt,
        parts=[
            Figure(f"{prompt.prompt}: rows by label", (5.2, 0.9 + 0.2 * n_bars), partial(_draw_labels, prompt)),
            Figure(f"{prompt.prompt}: rows by probability", (5.2, 2.6), partial(_draw_confidence, prompt)),
            Section(title="rows by label", parts=[rows_by_label], folded=True),
        ],
        on_terminal=False,
    )


def _draw_labels(prompt: PromptCounts, axes: Axes) -> None:
    ranked = _ranked(prompt)[:_MOST_BARS][::-1]
    axes.barh([label for label, *_ in ranked], [n for _, n, _ in ranked], color="#558")
    axes.set(xlabel="rows")


def _draw_confidence(prompt: PromptCounts, axes: Axes) -> None:
    axes.bar([i / N_BINS for i in range(N_BINS)], prompt.histogram, width=1 / N_BINS, align="edge", color="#855")
    axes.set(xlabel="probability of the most probable label", ylabel="rows", xlim=(0, 1))
