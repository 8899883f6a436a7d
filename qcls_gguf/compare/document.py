"""What is shown of a comparison: a table of the methods, their notes, the absent ones."""

from __future__ import annotations

from ..config.words import counted
from ..report.document import TEXT, Document, Facts, Paragraph, Section, Table, provenance
from .records import QUERIES, ComparisonRecord, MethodRecord

_LEGEND = (
    "× qcls: median of the rounds' ratios of medians, 10–90 %: quantiles of the same ratios; "
    "as scoring, as joint: share of winners equal to ours; "
    "none: answers without a winner; Δ log p: largest difference of log p(label | prompt) from our exact joint"
)


def document(comparison: ComparisonRecord) -> Document:
    """All that is shown of a record; the methods by their median time, the fastest first."""
    methods = sorted(comparison.methods, key=lambda method: method.p50_ms)
    table = Table(
        columns={
            **{"method": TEXT, "p50 ms": ".2f", "p90 ms": ".2f", "× qcls": ".2f", "10–90 %": ">s"},
            **{"as scoring": ".1%", "as joint": ".1%", "none": "d", "Δ log p": ".4f"},
        },
        rows=[_row(method) for method in methods],
        bold=[i for i, method in enumerate(methods) if method.name == "qcls"],
    )
    notes = [f"{each.name}: {each.about}" + (f". {each.note}" if each.note else "") for each in methods]
    if comparison.queries == QUERIES:
        notes.append("No queries were given: these are about fashion and short. With longer ones times are others.")
    notes += [f"{each.name} {each.state}: {each.reason}" for each in comparison.absent]
    facts = {
        **provenance(comparison.model, comparison.environment),
        "rounds": f"{comparison.rounds}, after {comparison.warm_up} that were not timed",
        "queries": " | ".join(comparison.queries),
    }
    return Document(
        title="Methods of labelling a query",
        parts=[
            Paragraph(_heading(comparison)),
            table,
            Paragraph(_LEGEND, "faint"),
            *map(Paragraph, notes),
            Section(title="Conditions", parts=[Facts(facts)], on_terminal=False),
        ],
    )


def _row(method: MethodRecord) -> list[object]:
    agreement, (low, high) = method.agreement, method.ratio_range
    agreed = agreement.scoring, agreement.joint, agreement.n_without_answer
    times = method.p50_ms, method.p90_ms, method.ratio_to_qcls
    return [method.name, *times, f"{low:.2f}–{high:.2f}", *agreed, method.largest_log_probability_difference]


def _heading(comparison: ComparisonRecord) -> str:
    """What was compared, in a line."""
    model = comparison.model
    return (
        f"{counted(comparison.n_prompts, 'prompt')}, {counted(comparison.n_queries, 'query', 'queries')}, "
        f"{counted(comparison.rounds, 'round')} of alternating requests; {model.description}, {model.quantization}, "
        f"{model.device}, {counted(comparison.environment.n_threads, 'thread')}; peers on stock kernels"
    )
