"""A benchmark as one HTML file: tables, stages, distributions and the sweep, nothing fetched from anywhere.

Needs the extra `report`.
"""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from ..report.html import STYLE, page, svg_image
from ..report.numbers import number
from ..report.tables import Table
from ..timing import STAGES
from .table import facts, record_tables

_FLOOR_COLOUR = "black"


def benchmark_html(record: dict[str, Any]) -> str:
    """The page of a record that `benchmark` made."""
    forward, kernels = record["forward"], record["forward_ab"]
    steps = [[each["name"], each["variable"], each["meaning"]] for each in kernels["steps"]] if kernels else []
    with matplotlib.rc_context(STYLE):
        return page(
            "bench.html",
            names=[each["name"] for each in record["classifiers"]],
            facts=facts(record),
            tables=record_tables(record),
            stages=[_stages_image(record)],
            distributions=_distribution_images(record),
            startup=_startup_table(record),
            forward=forward,
            sweep=[_forward_image(forward)] if forward else [],
            kernels=kernels,
            ab=[_ab_image(kernels)] if kernels else [],
            steps=Table(columns=("step", "variable", "what it does"), rows=steps, n_text=3),
        )


def _startup_table(record: dict[str, Any]) -> Table:
    starts = [each["startup_ms"] for each in record["classifiers"]]
    steps = list(dict.fromkeys(step for start in starts for step in start))
    rows = [
        [each["name"], *(number(start.get(step), 1) for step in steps)]
        for each, start in zip(record["classifiers"], starts, strict=True)
    ]
    return Table(columns=("start-up ms", *steps), rows=rows)


def _stages_image(record: dict[str, Any]) -> Markup:
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


def _distribution_images(record: dict[str, Any]) -> list[Markup]:
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


def _forward_image(forward: dict[str, Any]) -> Markup:
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


def _ab_image(comparison: dict[str, Any]) -> Markup:
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
