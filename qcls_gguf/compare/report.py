"""A comparison as one HTML file: a diagram of the ratios, the table, the notes. Needs matplotlib."""

from __future__ import annotations

from html import escape
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from ..report.html import CSS, STYLE, html_table, svg_image
from .table import COLUMNS, LEGEND, fastest_first, heading, way_row


def report_html(comparison: dict[str, Any]) -> str:
    """The page of a record that `compare` made."""
    ways = fastest_first(comparison)
    with matplotlib.rc_context(STYLE):
        image = _ratios_image(ways)
    notes = html_table(("way", "how", "note"), [[way["name"], way["about"], way["note"]] for way in ways], n_text=3)
    absent = [
        [each["name"], "failed" if each["started"] else "absent", each["reason"]] for each in comparison["absent"]
    ]
    environment, model = comparison["environment"], comparison["model"]
    packages = ", ".join(f"{name} {version}" for name, version in environment["packages"].items()) or "none"
    facts = [
        ["model", f"{model['path']}: {model['description']}"],
        ["model sha256", model["sha256"]],
        ["device", f"{model['device']}, {model['backend']}, {model['n_gpu_layers']} layers on the GPU, "
                   f"{environment['n_threads']} threads, {environment['os']}"],
        ["versions", f"qcls-gguf {model['package_version']}, llama.cpp {model['llama_cpp_commit']} patched"],
        ["peers' packages", packages],
        ["rounds", f"{comparison['rounds']}, after {comparison['warm_up']} that were not timed; seed of the order "
                   f"{comparison['seed']}"],
        ["queries", " | ".join(comparison["queries"])],
    ]  # fmt: skip
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>qcls-gguf compare</title>'
        f"<style>{CSS}</style></head><body>\n<h1>Ways to label a query</h1>\n<p>{escape(heading(comparison))}</p>\n"
        f"<div class=figures>{image}</div>\n{html_table(COLUMNS, [way_row(way) for way in ways])}"
        f"<p class=faint>{escape(LEGEND)}</p>\n<h2>Ways</h2>\n{notes}"
        + (f"<h2>Not measured</h2>\n{html_table(('way', 'state', 'reason'), absent, n_text=3)}" if absent else "")
        + f"<h2>Conditions</h2>\n{html_table(('what', 'value'), facts, n_text=2)}</body></html>\n"
    )


def _ratios_image(ways: list[dict[str, Any]]) -> str:
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
