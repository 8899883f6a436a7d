"""A comparison for people: a table of the ways, their notes, and what is absent."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ..report.numbers import number, percent
from ..report.results import printable
from ..report.tables import Table, terminal_table

COLUMNS = ("way", "p50 ms", "p90 ms", "× qcls", "10–90 %", "as scoring", "as joint", "none", "Δ log p", "Δ tree")
LEGEND = (
    "× qcls: ratio of medians; 10–90 %: of the rounds' ratios; as scoring, as joint: share of winners equal to ours; "
    "none: answers without a winner; Δ log p: largest difference of log p(label | prompt) from our exact joint; "
    "Δ tree: of log-probabilities among the labels"
)


def way_row(way: dict[str, Any]) -> list[str]:
    """The cells of COLUMNS for one way."""
    low, high = way["ratio_range"]
    agreement = way["agreement"] or {"scoring": None, "joint": None, "n_without_answer": None}
    n_without = agreement["n_without_answer"]
    return [
        way["name"],
        number(way["p50_ms"], 2),
        number(way["p90_ms"], 2),
        number(way["ratio_to_qcls"], 2),
        f"{low:.2f}–{high:.2f}",
        percent(agreement["scoring"]),
        percent(agreement["joint"]),
        "–" if n_without is None else str(n_without),
        number(way["largest_log_probability_difference"], 4),
        number(way["largest_tree_difference"], 4),
    ]


def ways_table(comparison: dict[str, Any]) -> Table:
    """A row a way, the fastest first."""
    return Table(columns=COLUMNS, rows=[way_row(way) for way in fastest_first(comparison)])


def heading(comparison: dict[str, Any]) -> str:
    """What was compared, in a line."""
    model = comparison["model"]
    kernels = (
        f"; peers on {comparison['peer_kernels']} matrix kernels"
        if "CUDA" in model["backend"] and model["n_gpu_layers"]
        else ""
    )
    return (
        f"{comparison['n_prompts']} prompts, {comparison['n_queries']} queries, {comparison['rounds']} rounds of "
        f"alternating requests; {model['description']}, {model['quantization']}, {model['device']}, "
        f"{comparison['environment']['n_threads']} threads{kernels}"
    )


def comparison_table(comparison: dict[str, Any]) -> Group:
    """The ways, fastest first, then their notes and the absent ones."""
    ours = [way["name"] == "qcls" for way in fastest_first(comparison)]
    table = terminal_table(ways_table(comparison), bold=ours, end=False)
    parts: list[RenderableType] = [Text(heading(comparison)), Text(), table, Text(), Text(LEGEND, style="dim"), Text()]
    for way in fastest_first(comparison):
        note = f". {way['note']}" if way["note"] else ""
        parts.append(Text.assemble((way["name"], "bold"), f": {printable(way['about'] + note)}"))
    for absent in comparison["absent"]:
        word = "failed" if absent["started"] else "absent"
        parts.append(Text.assemble((f"{absent['name']} {word}", "bold"), f": {printable(absent['reason'])}"))
    return Group(*parts)


def fastest_first(comparison: dict[str, Any]) -> list[dict[str, Any]]:
    """The ways by their median time."""
    return sorted(comparison["ways"], key=lambda way: float(way["p50_ms"]))
