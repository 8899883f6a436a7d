"""An evaluation as one HTML file: tables, reliability diagrams and confusion matrices, nothing fetched from anywhere.

Needs the extra `report`.
"""

from __future__ import annotations

import warnings
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..report.html import STYLE, page, svg_image
from ..report.numbers import number, percent
from ..report.tables import Table
from .robustness import robustness_sections
from .table import MODE_COLUMNS, modes_table_of, notes

_LABEL_COLUMNS = ("label", "support", "predicted", "precision", "recall", "F1")
_MARKERS = "os^D"


def report_html(evaluation: dict[str, Any]) -> str:
    """The page of a record that `evaluate` made."""
    modes: dict[str, dict[str, Any]] = evaluation["modes"]
    names = list(next(iter(modes.values()))["prompts"])
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # its own font only measures, see STYLE
        return page(
            "eval.html",
            facts=_facts(evaluation),
            modes=modes_table_of(modes),
            notes=notes(evaluation),
            measured=_measured(modes),
            images=[_reliability_image(modes)],
            coverage=_coverage(modes),
            prompts=[_prompt(name, {mode: found["prompts"][name] for mode, found in modes.items()}) for name in names],
            worst=_worst(evaluation),
            sections=list(robustness_sections(evaluation)),
        )


def _facts(evaluation: dict[str, Any]) -> list[tuple[str, str]]:
    data, model, environment = evaluation["data"], evaluation["model"], evaluation["environment"]
    return [
        ("data", f"{data['path']}: {data['n_rows']} rows, {data['n_bad']} left out"),
        ("data sha256", data["sha256"]),
        ("model", f"{model['path']}: {model['description']}"),
        ("model sha256", model["sha256"]),
        ("device", f"{model['device']}, {model['backend']}, {model['n_gpu_layers']} layers on the GPU, "
                   f"{environment['n_threads']} threads, {environment['os']}"),
        ("versions", f"qcls-gguf {model['package_version']}, llama.cpp {model['llama_cpp_commit']} patched"),
    ]  # fmt: skip


def _measured(modes: dict[str, Any]) -> str:
    found = [mode["latency"] for mode in modes.values() if mode["latency"]]
    return f"of {found[0]['n_queries']} queries, each mode in a classifier of its own" if found else "not measured"


def _coverage(modes: dict[str, Any]) -> Table | None:
    counted = {mode: found["coverage"] for mode, found in modes.items() if "coverage" in found}
    if not counted:
        return None
    thresholds = [each["threshold"] for each in next(iter(counted.values()))]
    rows = [
        [mode, *(f"{percent(each['accuracy'])} of {percent(each['coverage'])}" for each in coverage)]
        for mode, coverage in counted.items()
    ]
    return Table(columns=("mode", *(f"≥ {threshold}" for threshold in thresholds)), rows=rows)


def _prompt(name: str, modes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What the page says of one prompt."""
    counted = {mode: found for mode, found in modes.items() if found.get("n_rows")}
    images = [_reliability_image(counted)] if counted else []
    images += [_confusion_image(mode, found) for mode, found in counted.items()]
    labels = [Table(title=mode, columns=_LABEL_COLUMNS, rows=_label_rows(found)) for mode, found in counted.items()]
    return {"name": name, "modes": modes_table_of(modes, MODE_COLUMNS[:-2]), "images": images, "labels": labels}


def _label_rows(found: dict[str, Any]) -> list[list[str]]:
    return [
        [label, str(each["support"]), str(each["n_predicted"]), percent(each["precision"]), percent(each["recall"]),
         number(each["f1"])]
        for label, each in found["labels"].items()
    ]  # fmt: skip


def _worst(evaluation: dict[str, Any]) -> Table:
    columns = ("mode", "prompt", "line", "query", "accepted", "answer", "probability", "of the accepted")
    rows = [
        [each["mode"], each["prompt"], str(each["line"]), each["query"], "|".join(each["accepted"]), each["answer"],
         number(each["probability"]), number(each["p_accepted"])]
        for each in evaluation["worst"]
    ]  # fmt: skip
    return Table(columns=columns, rows=rows, n_text=6)


def _reliability_image(modes: dict[str, dict[str, Any]]) -> Markup:
    figure = Figure(figsize=(4.6, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color="#999", linewidth=1, linestyle="--")
    for index, (mode, found) in enumerate(modes.items()):
        bins = [each for each in found.get("reliability", []) if each["n"]]
        if bins:
            confidence, accuracy = [each["confidence"] for each in bins], [each["accuracy"] for each in bins]
            sizes = [8 + 90 * each["n"] / found["n_rows"] for each in bins]  # a large mark stands for many rows
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


def _confusion_image(mode: str, found: dict[str, Any]) -> Markup:
    labels, matrix = list(found["labels"]), np.array(found["confusion_matrix"])
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
