"""An evaluation as one HTML page without links: tables, reliability diagrams and confusion matrices.

Needs the extra `report`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..config.words import counted
from ..report.html import drawing, page, svg_image
from ..report.numbers import number, percent
from ..report.tables import Table
from .records import EvaluationRecord, ModeNotApplicable, ModeStatistics, PromptStatistics, Statistics
from .robustness import robustness_sections
from .robustness_records import NotApplicable
from .table import modes_tables, notes, prompt_table

_LABEL_COLUMNS = ("label", "support", "predicted", "precision", "recall", "F1")
_MARKERS = "os^D"

Modes = Mapping[str, ModeStatistics | ModeNotApplicable]


def evaluation_html(evaluation: EvaluationRecord) -> str:
    """The page of a record."""
    modes = evaluation.modes
    names = list(next(iter(modes.values())).prompts)
    with drawing():
        return page(
            "eval.html",
            facts=_facts(evaluation),
            modes=modes_tables(evaluation),
            notes=notes(evaluation),
            measured=_how_measured(modes),
            images=[_reliability_image(_with_statistics(modes))],
            coverage=_coverage(_with_statistics(modes)),
            prompts=[
                _prompt(name, {mode: statistics.prompts[name] for mode, statistics in modes.items()}) for name in names
            ],
            worst=_worst(evaluation),
            sections=list(robustness_sections(evaluation)),
        )


def _facts(evaluation: EvaluationRecord) -> list[tuple[str, str]]:
    data, model, environment = evaluation.data, evaluation.model, evaluation.environment
    return [
        ("data", f"{data.path}: {counted(data.n_rows, 'row')}, {data.n_bad} left out"),
        ("data sha256", data.sha256),
        ("model", f"{model.path}: {model.description}"),
        ("model sha256", model.sha256),
        ("device", f"{model.device}, {model.backend}, {counted(model.n_gpu_layers, 'layer')} on the GPU, "
                   f"{counted(environment.n_threads, 'thread')}, {environment.os}"),
        ("versions", f"qcls-gguf {model.package_version}, llama.cpp {model.llama_cpp_commit} patched"),
    ]  # fmt: skip


def _how_measured(modes: Modes) -> str:
    costs = [mode.latency for mode in modes.values() if mode.latency]
    if not costs:
        return "not measured"
    return f"of {counted(costs[0].n_queries, 'query', 'queries')}, each mode in a classifier of its own"


def _with_statistics(modes: Modes) -> dict[str, Statistics]:
    return {mode: statistics for mode, statistics in modes.items() if isinstance(statistics, Statistics)}


def _coverage(modes: Mapping[str, Statistics]) -> Table | None:
    if not modes:
        return None
    thresholds = [point.threshold for point in next(iter(modes.values())).coverage]
    rows = [
        [mode, *(f"{percent(point.accuracy)} of {percent(point.coverage)}" for point in statistics.coverage)]
        for mode, statistics in modes.items()
    ]
    return Table(columns=("mode", *(f"≥ {threshold}" for threshold in thresholds)), rows=rows)


def _prompt(name: str, modes: Mapping[str, PromptStatistics | NotApplicable]) -> dict[str, Any]:
    """What the page says of one prompt."""
    counted = {
        mode: statistics
        for mode, statistics in modes.items()
        if isinstance(statistics, PromptStatistics) and statistics.n_rows
    }
    images = [_reliability_image(counted)] if counted else []
    images += [_confusion_image(mode, statistics) for mode, statistics in counted.items()]
    labels = [
        Table(title=mode, columns=_LABEL_COLUMNS, rows=_label_rows(statistics)) for mode, statistics in counted.items()
    ]
    return {"name": name, "modes": prompt_table(modes), "images": images, "labels": labels}


def _label_rows(statistics: PromptStatistics) -> list[list[str]]:
    return [
        [label, str(of_label.support), str(of_label.n_predicted), percent(of_label.precision),
         percent(of_label.recall), number(of_label.f1)]
        for label, of_label in statistics.labels.items()
    ]  # fmt: skip


def _worst(evaluation: EvaluationRecord) -> Table:
    columns = ("mode", "prompt", "line", "query", "accepted", "answer", "probability", "of the accepted")
    rows = [
        [row.mode, row.prompt, str(row.line), row.query, "|".join(row.accepted), row.answer, number(row.probability),
         number(row.p_accepted)]
        for row in evaluation.worst
    ]  # fmt: skip
    return Table(columns=columns, rows=rows, n_text=6)


def _reliability_image(modes: Mapping[str, Statistics]) -> Markup:
    figure = Figure(figsize=(4.6, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color="#999", linewidth=1, linestyle="--")
    for index, (mode, statistics) in enumerate(modes.items()):
        bins = [
            (one_bin.confidence, one_bin.accuracy, one_bin.n)
            for one_bin in statistics.reliability
            if one_bin.confidence is not None and one_bin.accuracy is not None  # empty bins have neither
        ]
        if bins:
            confidence, accuracy, n_rows = zip(*bins, strict=True)
            sizes = [8 + 90 * n / statistics.n_rows for n in n_rows]  # a large mark stands for many rows
            axes.plot(confidence, accuracy, linewidth=0.8, alpha=0.5)
            axes.scatter(confidence, accuracy, s=sizes, marker=_MARKERS[index % len(_MARKERS)], alpha=0.8, label=mode)
    axes.set(
        xlim=(-0.03, 1.03),
        ylim=(-0.03, 1.03),
        xlabel="probability of the answer",
        ylabel="accuracy",
        title="Reliability",
    )
    axes.legend(loc="lower right", frameon=False)
    return svg_image(figure, "reliability diagram")


def _confusion_image(mode: str, statistics: PromptStatistics) -> Markup:
    labels, matrix = list(statistics.labels), np.array(statistics.confusion_matrix)
    side = max(2.6, 1.4 + 0.28 * len(labels))
    figure = Figure(figsize=(side + 0.4, side + 0.2), layout="constrained")
    axes = figure.add_subplot()
    share = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    axes.pcolormesh(share, cmap="Blues", vmin=0, vmax=1, edgecolors="#eee", linewidth=0.5)
    axes.invert_yaxis()
    _counts(axes, matrix, share)
    places = np.arange(len(labels)) + 0.5
    axes.set_xticks(places, labels, rotation=90)
    axes.set_yticks(places, labels)
    axes.tick_params(length=0)
    axes.set(aspect="equal", xlabel="answer", ylabel="label", title=mode)
    return svg_image(figure, f"confusion matrix of {mode}")


def _counts(axes: Axes, matrix: np.ndarray[Any, Any], share: np.ndarray[Any, Any]) -> None:
    for i, j in zip(*np.nonzero(matrix), strict=True):
        colour = "white" if share[i, j] > 0.6 else "black"
        axes.text(j + 0.5, i + 0.5, str(matrix[i, j]), ha="center", va="center", color=colour, fontsize=7)
