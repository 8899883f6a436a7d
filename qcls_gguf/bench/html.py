"""A benchmark as one HTML page without links: tables, stages, distributions and the sweep.

Needs matplotlib, of the extra `report`.
"""

from __future__ import annotations

from html import escape

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from ..report.html import CSS, STYLE, html_table, svg_image
from ..timing import STAGES
from .decode_records import ForwardRecord, VariantsRecord
from .records import BenchmarkRecord, WorkloadRecord
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

_ROOFLINE_COLOUR = "black"


def benchmark_html(record: BenchmarkRecord) -> str:
    """The page of a record."""
    names = ", ".join(classifier.name for classifier in record.classifiers)
    with matplotlib.rc_context(STYLE):
        stages, distributions = _stages_image(record), "".join(_distribution_images(record))
        sweep = _forward_image(record.forward) if record.forward else ""
        ab = _variants_image(record.forward_ab) if record.forward_ab else ""
    parts = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>qcls-gguf bench</title>',
        f"<style>{CSS}</style></head><body>\n<h1>Benchmark of {escape(names)}</h1>\n",
        html_table(("what", "value"), facts(record), n_text=2),
        f"<h2>Requests</h2>{html_table(TIME_COLUMNS, time_rows(record))}",
        "<p class=faint>Spread: the largest less the smallest p50 of the repetitions, by their median. Roofline: what "
        "the decode would take if nothing but reading the weights, or nothing but multiplying by them, took time.</p>",
        html_table(QUEUE_COLUMNS, queue_rows(record)) if queue_rows(record) else "",
        f"<div class=figures>{stages}</div>{html_table(STAGE_COLUMNS, stage_rows(record))}",
        f"<h2>Distribution</h2><div class=figures>{distributions}</div>",
        f"<h2>Tokens</h2>{html_table(TOKEN_COLUMNS, token_rows(record))}",
        "<p class=faint>Least: what any plan must feed, the distinct token paths less those stored. Padded: fed only "
        "to hit a warm shape.</p>",
        f"<h2>Start and memory</h2>{html_table(START_COLUMNS, start_rows(record))}{_startup_table(record)}",
    ]
    if record.forward:
        parts += [
            f"<h2>One decode over the number of tokens</h2><div class=figures>{sweep}</div>",
            html_table(FORWARD_COLUMNS, forward_rows(record), n_text=0),
            f"<p class=faint>New tokens behind the {record.forward.n_cached} cached ones of "
            f"{escape(record.forward.prompt)}; the last {record.forward.n_outputs} are read.</p>",
        ]
    if record.forward_ab:
        parts += [
            f"<h2>The kernels' variants in turns</h2><div class=figures>{ab}</div>",
            html_table(AB_COLUMNS, ab_rows(record)),
            "<p class=faint>Each variant has one step more than the one before; the last has all. Of stock: p50 by "
            "stock's p50; range: least and largest of the rounds. Difference: of the hidden states from stock's, "
            "relative Euclidean, the largest; rounding: of stock's own, with a second sequence in the decode. A "
            "variant is right where the two are of one size.</p>",
            html_table(
                ("step", "variable", "what it does"),
                [[step.name, step.variable, step.meaning] for step in record.forward_ab.steps],
                n_text=3,
            ),
        ]
    return "".join([*parts, "</body></html>\n"])


def _startup_table(record: BenchmarkRecord) -> str:
    starts = [classifier.startup_ms for classifier in record.classifiers]
    steps = list(dict.fromkeys(step for start in starts for step in start))
    rows = [
        [classifier.name, *(f"{start[step]:.1f}" if step in start else "–" for step in steps)]
        for classifier, start in zip(record.classifiers, starts, strict=True)
    ]
    return html_table(("start-up ms", *steps), rows)


def _stages_image(record: BenchmarkRecord) -> str:
    """A bar for each workload, the medians of its stages end to end, and a mark at its roofline."""
    workloads = record.workloads
    figure = Figure(figsize=(9.5, 1.2 + 0.26 * len(workloads)), layout="constrained")
    axes = figure.add_subplot()
    places = np.arange(len(workloads))
    left = np.zeros(len(workloads))
    for stage in STAGES:
        ms = np.array([workload.stage_ms[stage].p50 for workload in workloads])
        axes.barh(places, ms, left=left, height=0.7, label=stage)
        left += ms
    least_ms = [np.nan if workload.roofline_ms is None else workload.roofline_ms for workload in workloads]
    axes.scatter(least_ms, places, marker="|", s=90, color=_ROOFLINE_COLOUR, label="roofline", zorder=3)
    axes.set_yticks(places, [workload.name for workload in workloads])
    axes.invert_yaxis()
    axes.set(xlabel="ms, the medians of the stages", title="Where the time goes")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return svg_image(figure, "stages of the workloads")


def _distribution_images(record: BenchmarkRecord) -> list[str]:
    """For the requests of each size, the share that was answered within a time; a line a configuration."""
    sizes: dict[tuple[str, int], list[WorkloadRecord]] = {}
    for workload in record.workloads:
        sizes.setdefault((workload.queries, workload.batch), []).append(workload)
    images = []
    for (queries, batch), workloads in sizes.items():
        figure = Figure(figsize=(3.9, 2.8), layout="constrained")
        axes = figure.add_subplot()
        for workload in workloads:
            curve = workload.total_ms_quantiles
            axes.plot(curve, np.linspace(0, 100, len(curve)), label=workload.config)
        axes.set(xlabel="total ms", ylabel="% of requests", title=f"{queries}, batch {batch}", xlim=(0, None))
        axes.legend(frameon=False, loc="lower right")
        images.append(svg_image(figure, f"distribution of {queries}, batch {batch}"))
    return images


def _forward_image(forward: ForwardRecord) -> str:
    sizes = sorted(forward.sizes, key=lambda size: size.n_tokens)
    tokens = [size.n_tokens for size in sizes]
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.fill_between(
        tokens, [size.ms.min for size in sizes], [size.ms.p90 for size in sizes], alpha=0.25, label="min to p90"
    )
    axes.plot(tokens, [size.ms.p50 for size in sizes], marker="o", markersize=3, label="p50")
    least_ms = [size.roofline_ms for size in sizes if size.roofline_ms is not None]
    if least_ms:  # it is known for all sizes or for none
        axes.plot(tokens, least_ms, color=_ROOFLINE_COLOUR, linestyle="--", label="roofline")
    axes.set(xlabel="new tokens of one decode", ylabel="ms", ylim=(0, None), xlim=(0, None))
    axes.legend(frameon=False)
    return svg_image(figure, "time of one decode over its tokens")


def _variants_image(comparison: VariantsRecord) -> str:
    """A line a variant: its medians, and beside them their ratios to stock's."""
    sizes = sorted(comparison.sizes, key=lambda size: size.n_tokens)
    tokens = [size.n_tokens for size in sizes]
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    times, ratios = figure.subplots(1, 2)
    for index, variant in enumerate(comparison.variants):
        by_size = [size.variants[index] for size in sizes]
        times.plot(tokens, [of_size.ms.p50 for of_size in by_size], marker="o", markersize=3, label=variant.name)
        ratios.plot(tokens, [of_size.ratio for of_size in by_size], marker="o", markersize=3)
    times.set(xlabel="new tokens of one decode", ylabel="p50 ms", ylim=(0, None), xlim=(0, None))
    ratios.set(xlabel="new tokens of one decode", ylabel="p50 by stock's", ylim=(0, None), xlim=(0, None))
    times.legend(frameon=False)
    return svg_image(figure, "time of one decode by every variant of the kernels")
