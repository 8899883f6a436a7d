"""A comparison as one HTML page: a diagram of the ratios, the table, the notes. Needs matplotlib."""

from __future__ import annotations

from html import escape

import matplotlib
from matplotlib.figure import Figure

from ..report.html import CSS, STYLE, html_table, svg_image
from .records import ComparisonRecord, MethodRecord
from .table import COLUMNS, LEGEND, fastest_first, heading, method_row, state


def comparison_html(comparison: ComparisonRecord) -> str:
    """The page of a record."""
    methods = fastest_first(comparison)
    with matplotlib.rc_context(STYLE):
        image = _ratios_image(methods)
    notes = html_table(
        ("method", "how", "note"), [[method.name, method.about, method.note] for method in methods], n_text=3
    )
    absent = [[method.name, state(method), method.reason] for method in comparison.absent]
    environment, model = comparison.environment, comparison.model
    packages = ", ".join(f"{name} {version}" for name, version in environment.packages.items()) or "none"
    facts = [
        ["model", f"{model.path}: {model.description}"],
        ["model sha256", model.sha256],
        ["device", f"{model.device}, {model.backend}, {model.n_gpu_layers} layers on the GPU, "
                   f"{environment.n_threads} threads, {environment.platform}"],
        ["versions", f"qcls-gguf {model.package_version}, llama.cpp {model.llama_cpp_commit} patched"],
        ["peers' packages", packages],
        ["rounds", f"{comparison.rounds}, after {comparison.warm_up} that were not timed; seed of the order "
                   f"{comparison.seed}"],
        ["queries", " | ".join(comparison.queries)],
    ]  # fmt: skip
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>qcls-gguf compare</title>'
        f"<style>{CSS}</style></head><body>\n<h1>Methods of labelling a query</h1>\n"
        f"<p>{escape(heading(comparison))}</p>\n"
        f"<div class=figures>{image}</div>\n{html_table(COLUMNS, [method_row(method) for method in methods])}"
        f"<p class=faint>{escape(LEGEND)}</p>\n<h2>Methods</h2>\n{notes}"
        + (f"<h2>Not measured</h2>\n{html_table(('method', 'state', 'reason'), absent, n_text=3)}" if absent else "")
        + f"<h2>Conditions</h2>\n{html_table(('what', 'value'), facts, n_text=2)}</body></html>\n"
    )


def _ratios_image(methods: list[MethodRecord]) -> str:
    """A mark at each method's ratio, a line over the 10–90 % range of the rounds."""
    figure = Figure(figsize=(7.2, 1.0 + 0.32 * len(methods)), layout="constrained")
    axes = figure.add_subplot()
    for place, method in enumerate(reversed(methods)):
        axes.plot(method.ratio_range, [place, place], color="#88a", linewidth=3, solid_capstyle="butt")
        axes.plot(method.ratio_to_qcls, place, "o", color="#113")
        axes.annotate(
            f"{method.ratio_to_qcls:.2f}",
            (method.ratio_to_qcls, place),
            textcoords="offset points",
            xytext=(0, 6),
            ha="center",
            fontsize=7,
        )
    axes.axvline(1, color="#999", linewidth=1, linestyle="--")
    axes.set_xscale("log")
    ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500) if _within(tick, methods)]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_yticks(range(len(methods)), [method.name for method in reversed(methods)])
    axes.set(xlabel="latency, times that of qcls", ylim=(-0.6, len(methods) - 0.2))
    return svg_image(figure, "latency of every method, times that of qcls")


def _within(tick: float, methods: list[MethodRecord]) -> bool:
    ratios = [ratio for method in methods for ratio in (*method.ratio_range, method.ratio_to_qcls, 1.0)]
    return bool(min(ratios) / 2 <= tick <= max(ratios) * 2)
