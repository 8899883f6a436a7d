"""An evaluation as one HTML file: tables, reliability diagrams and confusion matrices, nothing fetched from anywhere.

Needs matplotlib, of the extra `report`.
"""

from __future__ import annotations

import warnings
from html import escape
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..report.html import CSS, STYLE, html_table, svg_image
from .robustness import robustness_sections
from .table import MODE_COLUMNS, mode_row, notes, number, percent

_LABEL_COLUMNS = ("label", "support", "predicted", "precision", "recall", "F1")
_MARKERS = "os^D"


def report_html(evaluation: dict[str, Any]) -> str:
    """The page of a record that `evaluate` made."""
    modes: dict[str, dict[str, Any]] = evaluation["modes"]
    names = list(next(iter(modes.values()))["prompts"])
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # its own font only measures, see STYLE
        prompts = "".join(
            _prompt(name, {mode: found["prompts"][name] for mode, found in modes.items()}) for name in names
        )
        overall = _reliability_image(modes)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>qcls-gguf eval</title>'
        f"<style>{CSS}</style></head><body>\n<h1>Evaluation of {len(names)} prompts</h1>\n{_facts(evaluation)}"
        f"<h2>Modes</h2>\n{html_table(MODE_COLUMNS, [mode_row(mode, found) for mode, found in modes.items()])}"
        f"{''.join(f'<p class=note>{escape(note)}</p>' for note in notes(evaluation))}"
        f"<p class=faint>Accuracy with its Wilson 95 % interval; log-loss in nats; ECE over 15 bins; as joint: the "
        f"share of rows with the answer of joint; mass: the mean probability that lies on the labels at all; times and "
        f"tokens are of a whole request, {escape(_measured(modes))}.</p>"
        f"<div class=figures>{overall}</div>\n{_coverage(modes)}{prompts}{_worst(evaluation)}{_robustness(evaluation)}"
        f"</body></html>\n"
    )


def _facts(evaluation: dict[str, Any]) -> str:
    data, model, environment = evaluation["data"], evaluation["model"], evaluation["environment"]
    rows = [
        ["data", f"{data['path']}: {data['n_rows']} rows, {data['n_bad']} left out"],
        ["data sha256", data["sha256"]],
        ["model", f"{model['path']}: {model['description']}"],
        ["model sha256", model["sha256"]],
        ["device", f"{model['device']}, {model['backend']}, {model['n_gpu_layers']} layers on the GPU, "
                   f"{environment['n_threads']} threads, {environment['os']}"],
        ["versions", f"qcls-gguf {model['package_version']}, llama.cpp {model['llama_cpp_commit']} patched"],
    ]  # fmt: skip
    return html_table(("what", "value"), rows, n_text=2)


def _measured(modes: dict[str, Any]) -> str:
    found = [mode["latency"] for mode in modes.values() if mode["latency"]]
    return f"of {found[0]['n_queries']} queries, each mode in a classifier of its own" if found else "not measured"


def _coverage(modes: dict[str, Any]) -> str:
    counted = {mode: found["coverage"] for mode, found in modes.items() if "coverage" in found}
    if not counted:
        return ""
    thresholds = [each["threshold"] for each in next(iter(counted.values()))]
    rows = [
        [mode, *(f"{percent(each['accuracy'])} of {percent(each['coverage'])}" for each in coverage)]
        for mode, coverage in counted.items()
    ]
    head = "<h3>Accuracy of the rows answered with at least this probability</h3>"
    return head + html_table(("mode", *(f"≥ {threshold}" for threshold in thresholds)), rows)


def _prompt(name: str, modes: dict[str, dict[str, Any]]) -> str:
    parts = [
        f"<h2>{escape(name)}</h2>",
        html_table(MODE_COLUMNS[:-2], [mode_row(m, found)[:-2] for m, found in modes.items()]),
    ]
    counted = {mode: found for mode, found in modes.items() if found.get("n_rows")}
    images = [_reliability_image(counted)] if counted else []
    images += [_confusion_image(mode, found) for mode, found in counted.items()]
    parts.append(f"<div class=figures>{''.join(images)}</div>")
    for mode, found in counted.items():
        rows = [
            [label, str(each["support"]), str(each["n_predicted"]), percent(each["precision"]), percent(each["recall"]),
             number(each["f1"])]
            for label, each in found["labels"].items()
        ]  # fmt: skip
        parts.append(f"<details><summary>{escape(mode)} by label</summary>{html_table(_LABEL_COLUMNS, rows)}</details>")
    return "\n".join(parts)


def _worst(evaluation: dict[str, Any]) -> str:
    columns = ("mode", "prompt", "line", "query", "accepted", "answer", "probability", "of the accepted")
    rows = [
        [each["mode"], each["prompt"], str(each["line"]), each["query"], "|".join(each["accepted"]), each["answer"],
         number(each["probability"]), number(each["p_accepted"])]
        for each in evaluation["worst"]
    ]  # fmt: skip
    return f"<h2>Worst-scored rows</h2>{html_table(columns, rows, n_text=6)}"


def _robustness(evaluation: dict[str, Any]) -> str:
    return "".join(
        f"<h2>{escape(section.title)}</h2>{html_table(section.columns, section.rows, n_text=section.n_text)}"
        for section in robustness_sections(evaluation)
    )


def _reliability_image(modes: dict[str, dict[str, Any]]) -> str:
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


def _confusion_image(mode: str, found: dict[str, Any]) -> str:
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
