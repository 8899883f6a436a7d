"""A comparison as one HTML page: a diagram of the ratios, the table, the notes. Needs the extra `report`."""

from __future__ import annotations

from markupsafe import Markup
from matplotlib.figure import Figure

from ..config.words import counted
from ..report.html import drawing, page, svg_image
from ..report.tables import Table
from .records import ComparisonRecord, MethodRecord
from .table import LEGEND, fastest_first, heading, methods_table, state


def comparison_html(comparison: ComparisonRecord) -> str:
    """The page of a record."""
    methods = fastest_first(comparison)
    notes = [[method.name, method.about, method.note] for method in methods]
    absent = [[method.name, state(method), method.reason] for method in comparison.absent]
    with drawing():
        return page(
            "compare.html",
            heading=heading(comparison),
            images=[_ratios_image(methods)],
            methods=methods_table(comparison),
            legend=LEGEND,
            notes=Table(columns=("method", "how", "note"), rows=notes, n_text=3),
            absent=Table(columns=("method", "state", "reason"), rows=absent, n_text=3),
            facts=_facts(comparison),
        )


def _facts(comparison: ComparisonRecord) -> list[tuple[str, str]]:
    environment, model = comparison.environment, comparison.model
    packages = ", ".join(f"{name} {version}" for name, version in environment.packages.items()) or "none"
    return [
        ("model", f"{model.path}: {model.description}"),
        ("model sha256", model.sha256),
        ("device", f"{model.device}, {model.backend}, {counted(model.n_gpu_layers, 'layer')} on the GPU, "
                   f"{counted(environment.n_threads, 'thread')}, {environment.os}"),
        ("versions", f"qcls-gguf {model.package_version}, llama.cpp {model.llama_cpp_commit} patched"),
        ("peers' packages", packages),
        ("rounds", f"{comparison.rounds}, after {comparison.warm_up} that were not timed; seed of the order "
                   f"{comparison.seed}"),
        ("queries", " | ".join(comparison.queries)),
    ]  # fmt: skip


def _ratios_image(methods: list[MethodRecord]) -> Markup:
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
