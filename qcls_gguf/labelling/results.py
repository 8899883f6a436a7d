"""What a run of `label` shows: rows, labels, speed, and the first rows without labels."""

from __future__ import annotations

from ..config.words import counted
from ..report.document import TEXT, Document, Paragraph, Section, Table, facts, measured, percent, provenance
from .records import LabellingRecord, PromptCounts
from .worker import duration

_N_TOP = 5
_MIB = 1 << 20


def labelling_document(record: LabellingRecord) -> Document:
    """The rows, the prompts' labels, the speed, and the first rows without labels."""
    n_more = record.n_null + record.n_bad - len(record.bad)
    conditions = provenance(record.model, record.environment)
    return Document(
        title="Labelled rows",
        parts=[
            facts(_facts(record)),
            Section(title="Conditions", parts=[facts(conditions)], on_terminal=False),
            _prompts(record),
            _speeds(record),
            *map(_labels, record.prompts),
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


def _labels(prompt: PromptCounts) -> Section:
    table = Table(columns={"label": TEXT, "rows": ",", "share": ".1%"}, rows=_ranked(prompt))
    return Section(title=prompt.prompt, parts=[table], on_terminal=False)
