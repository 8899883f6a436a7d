"""A comparison as text on a terminal: a table of the methods, their notes, and the absent ones."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from ..config.words import counted, printable
from ..model.placement import weights_text
from ..report.numbers import number, percent
from ..report.tables import Table, terminal_table
from .records import AbsentMethod, ComparisonRecord, MethodRecord

COLUMNS = ("method", "p50 ms", "p90 ms", "× qcls", "10–90 %", "as scoring", "as joint", "none", "Δ log p", "Δ tree")
LEGEND = (
    "× qcls: median of the rounds' ratios of medians, 10–90 %: quantiles of the same ratios; "
    "as scoring, as joint: share of winners equal to ours; "
    "none: answers without a winner; Δ log p: largest difference of log p(label | prompt) from our exact joint; "
    "Δ tree: of log-probabilities among the labels"
)


def method_row(method: MethodRecord) -> list[str]:
    """The cells of COLUMNS for one method."""
    low, high = method.ratio_range
    agreement = method.agreement
    return [
        method.name,
        number(method.p50_ms, 2),
        number(method.p90_ms, 2),
        number(method.ratio_to_qcls, 2),
        f"{low:.2f}–{high:.2f}",
        percent(agreement.scoring if agreement else None),
        percent(agreement.joint if agreement else None),
        "–" if agreement is None else str(agreement.n_without_answer),
        number(method.largest_log_probability_difference, 4),
        number(method.largest_tree_difference, 4),
    ]


def methods_table(comparison: ComparisonRecord) -> Table:
    """A row a method, the fastest first."""
    return Table(columns=COLUMNS, rows=[method_row(method) for method in fastest_first(comparison)])


def heading(comparison: ComparisonRecord) -> str:
    """What was compared, in a line."""
    model = comparison.model
    kernels = (
        f"; peers on {comparison.peer_kernels} matrix kernels, weights: {weights_text(model.n_lane_ordered)}"
        if "CUDA" in model.backend and model.n_gpu_layers
        else ""
    )
    return (
        f"{counted(comparison.n_prompts, 'prompt')}, {counted(comparison.n_queries, 'query', 'queries')}, "
        f"{counted(comparison.rounds, 'round')} of "
        f"alternating requests; {model.description}, {model.quantization}, {model.device}, "
        f"{counted(comparison.environment.n_threads, 'thread')}{kernels}"
    )


def comparison_table(comparison: ComparisonRecord) -> Group:
    """The methods, fastest first, then their notes and the absent ones."""
    ours = [method.name == "qcls" for method in fastest_first(comparison)]
    table = terminal_table(methods_table(comparison), bold=ours, end=False)
    parts: list[RenderableType] = [Text(heading(comparison)), Text(), table, Text(), Text(LEGEND, style="dim"), Text()]
    for method in fastest_first(comparison):
        note = f". {method.note}" if method.note else ""
        parts.append(Text.assemble((method.name, "bold"), f": {printable(method.about + note)}"))
    for absent in comparison.absent:
        word = state(absent)
        parts.append(Text.assemble((f"{absent.name} {word}", "bold"), f": {printable(absent.reason)}"))
    return Group(*parts)


def state(method: AbsentMethod) -> str:
    """Why a method has no figures, in a word."""
    return "failed" if method.started else "absent"


def fastest_first(comparison: ComparisonRecord) -> list[MethodRecord]:
    """The methods by their median time."""
    return sorted(comparison.methods, key=lambda method: method.p50_ms)
