"""A comparison as one HTML file: a diagram of the ratios, the table, the notes. Needs the extra `report`."""

from __future__ import annotations

from typing import Any

import matplotlib
from markupsafe import Markup
from matplotlib.figure import Figure

from ..report.html import STYLE, page, svg_image
from ..report.tables import Table
from .table import LEGEND, fastest_first, heading, ways_table


def report_html(comparison: dict[str, Any]) -> str:
    """The page of a record that `compare` made."""
    ways = fastest_first(comparison)
    notes = [[way["name"], way["about"], way["note"]] for way in ways]
    absent = [
        [each["name"], "failed" if each["started"] else "absent", each["reason"]] for each in comparison["absent"]
    ]
    with matplotlib.rc_context(STYLE):
        return page(
            "compare.html",
            heading=heading(comparison),
            images=[_ratios_image(ways)],
            ways=ways_table(comparison),
            legend=LEGEND,
            notes=Table(columns=("way", "how", "note"), rows=notes, n_text=3),
            absent=Table(columns=("way", "state", "reason"), rows=absent, n_text=3),
            facts=_facts(comparison),
        )


def _facts(comparison: dict[str, Any]) -> list[tuple[str, str]]:
    environment, model = comparison["environment"], comparison["model"]
    packages = ", ".join(f"{name} {version}" for name, version in environment["packages"].items()) or "none"
    return [
        ("model", f"{model['path']}: {model['description']}"),
        ("model sha256", model["sha256"]),
        ("device", f"{model['device']}, {model['backend']}, {model['n_gpu_layers']} layers on the GPU, "
                   f"{environment['n_threads']} threads, {environment['os']}"),
        ("versions", f"qcls-gguf {model['package_version']}, llama.cpp {model['llama_cpp_commit']} patched"),
        ("peers' packages", packages),
        ("rounds", f"{comparison['rounds']}, after {comparison['warm_up']} that were not timed; seed of the order "
                   f"{comparison['seed']}"),
        ("queries", " | ".join(comparison["queries"])),
    ]  # fmt: skip


def _ratios_image(ways: list[dict[str, Any]]) -> Markup:
    """A mark at each way's ratio, a line over the 10–90 % range of the rounds."""
    figure = Figure(figsize=(7.2, 1.0 + 0.32 * len(ways)), layout="constrained")
    axes = figure.add_subplot()
    for place, way in enumerate(reversed(ways)):
        axes.plot(way["ratio_range"], [place, place], color="#88a", linewidth=3, solid_capstyle="butt")
        axes.plot(way["ratio_to_qcls"], place, "o", color="#113")
        axes.annotate(
            f"{way['ratio_to_qcls']:.2f}",
            (way["ratio_to_qcls"], place),
            textcoords="offset points",
            xytext=(0, 6),
            ha="center",
            fontsize=7,
        )
    axes.axvline(1, color="#999", linewidth=1, linestyle="--")
    axes.set_xscale("log")
    ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500) if _within(tick, ways)]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_yticks(range(len(ways)), [way["name"] for way in reversed(ways)])
    axes.set(xlabel="latency, times that of qcls", ylim=(-0.6, len(ways) - 0.2))
    return svg_image(figure, "latency of every way, times that of qcls")


def _within(tick: float, ways: list[dict[str, Any]]) -> bool:
    ratios = [ratio for way in ways for ratio in (*way["ratio_range"], way["ratio_to_qcls"], 1.0)]
    return bool(min(ratios) / 2 <= tick <= max(ratios) * 2)
