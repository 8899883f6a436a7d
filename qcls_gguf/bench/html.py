"""A benchmark as one HTML file: tables, stages, distributions and the sweep, nothing fetched from anywhere.

Needs matplotlib, of the extra `report`.
"""

from __future__ import annotations

from html import escape
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from ..report.html import CSS, STYLE, html_table, svg_image
from ..timing import STAGES
from .table import (
    AB_COLUMNS,
    FORWARD_COLUMNS,
    QUEUE_COLUMNS,
    STAGE_COLUMNS,
    START_COLUMNS,
    TIME_COLUMNS,
    TOKEN_COLUMNS,
    ab_rows,
    facts,
    forward_rows,
    queue_rows,
    stage_rows,
    start_rows,
    time_rows,
    token_rows,
)

_FLOOR_COLOUR = "black"


def benchmark_html(record: dict[str, Any]) -> str:
    """The page of a record that `benchmark` made."""
    names = ", ".join(each["name"] for each in record["classifiers"])
    with matplotlib.rc_context(STYLE):
        stages, distributions = _stages_image(record), "".join(_distribution_images(record))
        sweep = _forward_image(record["forward"]) if record["forward"] else ""
        ab = _ab_image(record["forward_ab"]) if record["forward_ab"] else ""
    parts = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>qcls-gguf bench</title>',
        f"<style>{CSS}</style></head><body>\n<h1>Benchmark of {escape(names)}</h1>\n",
        html_table(("what", "value"), facts(record), n_text=2),
        f"<h2>Requests</h2>{html_table(TIME_COLUMNS, time_rows(record))}",
        "<p class=faint>Spread: the largest less the smallest p50 of the repetitions, by their median. Floor: what the "
        "decode would take if nothing but reading the weights, or nothing but multiplying by them, took time.</p>",
        html_table(QUEUE_COLUMNS, queue_rows(record)) if queue_rows(record) else "",
        f"<div class=figures>{stages}</div>{html_table(STAGE_COLUMNS, stage_rows(record))}",
        f"<h2>Distribution</h2><div class=figures>{distributions}</div>",
        f"<h2>Tokens</h2>{html_table(TOKEN_COLUMNS, token_rows(record))}",
        "<p class=faint>Least: what any plan must feed, the distinct token paths less those stored. Padded: fed only "
        "to hit a warm shape.</p>",
        f"<h2>Start and memory</h2>{html_table(START_COLUMNS, start_rows(record))}{_startup_table(record)}",
    ]
    if record["forward"]:
        sweep_of = record["forward"]
        parts += [
            f"<h2>One decode over the number of tokens</h2><div class=figures>{sweep}</div>",
            html_table(FORWARD_COLUMNS, forward_rows(record), n_text=0),
            f"<p class=faint>New tokens behind the {sweep_of['n_cached']} cached ones of {escape(sweep_of['prompt'])}; "
            f"the last {sweep_of['n_outputs']} are read.</p>",
        ]
    if record["forward_ab"]:
        parts += [
            f"<h2>The kernels' variants in turns</h2><div class=figures>{ab}</div>",
            html_table(AB_COLUMNS, ab_rows(record)),
            "<p class=faint>Each variant has one step more than the one before; the last has all. Of stock: p50 by "
            "stock's p50; range: least and largest of the rounds. Difference: of the hidden states from stock's, "
            "relative Euclidean, the largest; rounding: of stock's own, with another line of tokens in the decode. A "
            "variant is right where the two are of one size.</p>",
            html_table(
                ("step", "variable", "what it does"),
                [[each["name"], each["variable"], each["meaning"]] for each in record["forward_ab"]["steps"]],
                n_text=3,
            ),
        ]
    return "".join([*parts, "</body></html>\n"])


def _startup_table(record: dict[str, Any]) -> str:
    starts = [each["startup_ms"] for each in record["classifiers"]]
    steps = list(dict.fromkeys(step for start in starts for step in start))
    rows = [
        [each["name"], *(f"{start[step]:.1f}" if step in start else "–" for step in steps)]
        for each, start in zip(record["classifiers"], starts, strict=True)
    ]
    return html_table(("start-up ms", *steps), rows)


def _stages_image(record: dict[str, Any]) -> str:
    """A bar a workload: the medians of its stages end to end, and its floor."""
    workloads = record["workloads"]
    figure = Figure(figsize=(9.5, 1.2 + 0.26 * len(workloads)), layout="constrained")
    axes = figure.add_subplot()
    places = np.arange(len(workloads))
    left = np.zeros(len(workloads))
    for stage in STAGES:
        ms = np.array([each["stage_ms"][stage]["p50"] for each in workloads])
        axes.barh(places, ms, left=left, height=0.7, label=stage)
        left += ms
    floor = [np.nan if each["floor_ms"] is None else each["floor_ms"] for each in workloads]
    axes.scatter(floor, places, marker="|", s=90, color=_FLOOR_COLOUR, label="floor", zorder=3)
    axes.set_yticks(places, [each["name"] for each in workloads])
    axes.invert_yaxis()
    axes.set(xlabel="ms, the medians of the stages", title="Where the time goes")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return svg_image(figure, "stages of the workloads")


def _distribution_images(record: dict[str, Any]) -> list[str]:
    """For the requests of each size, the share that was answered within a time; a line a configuration."""
    sizes: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for each in record["workloads"]:
        sizes.setdefault((each["queries"], each["batch"]), []).append(each)
    images = []
    for (queries, batch), workloads in sizes.items():
        figure = Figure(figsize=(3.9, 2.8), layout="constrained")
        axes = figure.add_subplot()
        for each in workloads:
            curve = each["total_ms_quantiles"]
            axes.plot(curve, np.linspace(0, 100, len(curve)), label=each["config"])
        axes.set(xlabel="total ms", ylabel="% of requests", title=f"{queries}, batch {batch}", xlim=(0, None))
        axes.legend(frameon=False, loc="lower right")
        images.append(svg_image(figure, f"distribution of {queries}, batch {batch}"))
    return images


def _forward_image(forward: dict[str, Any]) -> str:
    sizes = sorted(forward["sizes"], key=lambda each: each["n_tokens"])
    tokens = [each["n_tokens"] for each in sizes]
    low, middle, high = ([each["ms"][name] for each in sizes] for name in ("min", "p50", "p90"))
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.fill_between(tokens, low, high, alpha=0.25, label="min to p90")
    axes.plot(tokens, middle, marker="o", markersize=3, label="p50")
    if sizes[0]["floor_ms"] is not None:
        axes.plot(tokens, [each["floor_ms"] for each in sizes], color=_FLOOR_COLOUR, linestyle="--", label="floor")
    axes.set(xlabel="new tokens of one decode", ylabel="ms", ylim=(0, None), xlim=(0, None))
    axes.legend(frameon=False)
    return svg_image(figure, "time of one decode over its tokens")


def _ab_image(comparison: dict[str, Any]) -> str:
    """A line a variant: its medians, and beside them their ratios to stock's."""
    sizes = sorted(comparison["sizes"], key=lambda each: each["n_tokens"])
    tokens = [each["n_tokens"] for each in sizes]
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    times, ratios = figure.subplots(1, 2)
    for index, variant in enumerate(comparison["variants"]):
        found = [each["variants"][index] for each in sizes]
        times.plot(tokens, [each["ms"]["p50"] for each in found], marker="o", markersize=3, label=variant["name"])
        ratios.plot(tokens, [each["ratio"] for each in found], marker="o", markersize=3)
    times.set(xlabel="new tokens of one decode", ylabel="p50 ms", ylim=(0, None), xlim=(0, None))
    ratios.set(xlabel="new tokens of one decode", ylabel="p50 by stock's", ylim=(0, None), xlim=(0, None))
    times.legend(frameon=False)
    return svg_image(figure, "time of one decode by every variant of the kernels")
