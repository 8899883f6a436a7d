"""What is shown of a comparison: a table of the methods, their notes, the absent ones; on a page also the ratios."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ..config.words import counted
from ..report.document import TEXT, Document, Facts, Figure, Paragraph, Section, Table, provenance
from .records import QUERIES, ComparisonRecord, MethodRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)
_LEGEND = (
    "× qcls: median of the rounds' ratios of medians, 10–90 %: quantiles of the same ratios; "
    "as scoring, as joint: share of winners equal to ours; "
    "none: answers without a winner; Δ log p: largest difference of log p(label | prompt) from our exact joint; "
    "Δ tree: of log-probabilities among the labels"
)


def document(comparison: ComparisonRecord) -> Document:
    """All that is shown of a record; the methods by their median time, the fastest first."""
    methods = sorted(comparison.methods, key=lambda method: method.p50_ms)
    table = Table(
        columns={
            **{"method": TEXT, "p50 ms": ".2f", "p90 ms": ".2f", "× qcls": ".2f", "10–90 %": ">s"},
            **{"as scoring": ".1%", "as joint": ".1%", "none": "d", "Δ log p": ".4f", "Δ tree": ".4f"},
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
        "rounds": f"{comparison.rounds}, after {comparison.warm_up} that were not timed; seed of the order "
        f"{comparison.seed}",
        "queries": " | ".join(comparison.queries),
    }
    return Document(
        title="Methods of labelling a query",
        parts=[
            Paragraph(_heading(comparison)),
            Figure(
                "latency of every method, times that of qcls", (7.2, 1 + 0.32 * len(methods)), partial(_draw, methods)
            ),
            table,
            Paragraph(_LEGEND, "faint"),
            *map(Paragraph, notes),
            Section(title="Conditions", parts=[Facts(facts)], on_terminal=False),
        ],
    )


def _row(method: MethodRecord) -> list[object]:
    agreement, (low, high) = method.agreement, method.ratio_range
    agreed = agreement.scoring, agreement.joint, agreement.n_without_answer
    differences = method.largest_log_probability_difference, method.largest_tree_difference
    times = method.p50_ms, method.p90_ms, method.ratio_to_qcls
    return [method.name, *times, f"{low:.2f}–{high:.2f}", *agreed, *differences]


def _heading(comparison: ComparisonRecord) -> str:
    """What was compared, in a line."""
    model = comparison.model
    return (
        f"{counted(comparison.n_prompts, 'prompt')}, {counted(comparison.n_queries, 'query', 'queries')}, "
        f"{counted(comparison.rounds, 'round')} of alternating requests; {model.description}, {model.quantization}, "
        f"{model.device}, {counted(comparison.environment.n_threads, 'thread')}; "
        f"peers on {comparison.peer_kernels} kernels"
    )


def _draw(methods: list[MethodRecord], axes: Axes) -> None:
    """A mark at each method's ratio, a line over the 10–90 % range of the rounds."""
    for place, method in enumerate(reversed(methods)):
        at = method.ratio_to_qcls, place
        axes.plot(method.ratio_range, [place, place], color="#88a", linewidth=3, solid_capstyle="butt")
        axes.plot(*at, "o", color="#113")
        axes.annotate(f"{at[0]:.2f}", at, textcoords="offset points", xytext=(0, 6), ha="center", fontsize=7)
    axes.axvline(1, color="#999", linewidth=1, linestyle="--")
    axes.set_xscale("log")
    ratios = [ratio for method in methods for ratio in (*method.ratio_range, method.ratio_to_qcls, 1.0)]
    ticks = [tick for tick in _TICKS if min(ratios) / 2 <= tick <= max(ratios) * 2]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_yticks(range(len(methods)), [method.name for method in reversed(methods)])
    axes.set(xlabel="latency, times that of qcls", ylim=(-0.6, len(methods) - 0.2))
