"""A benchmark as one HTML page without links: tables, stages, distributions and the sweep.

Needs the extra `report`.
"""

from __future__ import annotations

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from ..report.html import drawing, page, svg_image
from ..report.numbers import number
from ..report.tables import Table
from ..timing import STAGES
from .decode_records import ForwardRecord, VariantsRecord
from .records import BenchmarkRecord, WorkloadRecord
from .table import facts, record_tables

_ROOFLINE_COLOUR = "black"


def benchmark_html(record: BenchmarkRecord) -> str:
    """The page of a record."""
    forward, variants = record.forward, record.forward_ab
    steps = [[step.name, step.variable, step.meaning] for step in variants.steps] if variants else []
    with drawing():
        return page(
            "bench.html",
            names=[classifier.name for classifier in record.classifiers],
            facts=facts(record),
            tables=record_tables(record),
            stages=[_stages_image(record)],
            distributions=_distribution_images(record),
            startup=_startup_table(record),
            forward=forward,
            sweep=[_forward_image(forward)] if forward else [],
            variants=variants,
            ab=[_variants_image(variants)] if variants else [],
            steps=Table(columns=("step", "variable", "what it does"), rows=steps, n_text=3),
        )


def _startup_table(record: BenchmarkRecord) -> Table:
    starts = [classifier.startup_ms for classifier in record.classifiers]
    steps = list(dict.fromkeys(step for start in starts for step in start))
    rows = [
        [classifier.name, *(number(start.get(step), 1) for step in steps)]
        for classifier, start in zip(record.classifiers, starts, strict=True)
    ]
    return Table(columns=("start-up ms", *steps), rows=rows)


def _stages_image(record: BenchmarkRecord) -> Markup:
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


def _distribution_images(record: BenchmarkRecord) -> list[Markup]:
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


def _forward_image(forward: ForwardRecord) -> Markup:
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


def _variants_image(comparison: VariantsRecord) -> Markup:
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
