"""A run of `label` as one HTML page: tables, distributions of labels and confidence. Needs the extra `report`."""

from __future__ import annotations

from markupsafe import Markup
from matplotlib.figure import Figure

from ..config.words import counted
from ..report.html import drawing, page, svg_image
from ..report.numbers import percent
from ..report.tables import Table
from .records import N_BINS, LabellingRecord, PromptCounts
from .table import facts, prompts_table, speeds_table

_MOST_BARS = 30


def labelling_html(record: LabellingRecord) -> str:
    """The page of a record."""
    with drawing():
        return page(
            "label.html",
            facts=[*facts(record), *_conditions(record)],
            prompts=prompts_table(record),
            speeds=speeds_table(record) if record.speed.measured else Table(columns=(), rows=()),
            each=[
                {"name": prompt.prompt, "labels": _labels(prompt), "images": _images(prompt)}
                for prompt in record.prompts
            ],
            bad=Table(columns=("input", "reason"), rows=[[each.path, each.reason] for each in record.bad], n_text=2),
            n_more=record.n_null + record.n_bad - len(record.bad),
        )


def _conditions(record: LabellingRecord) -> list[tuple[str, str]]:
    model, environment = record.model, record.environment
    return [
        ("model", f"{model.path}: {model.description}"),
        ("model sha256", model.sha256),
        ("device", f"{model.device}, {model.backend}, {counted(environment.n_threads, 'thread')}, {environment.os}"),
        ("versions", f"qcls-gguf {model.package_version}, llama.cpp {model.llama_cpp_commit} patched"),
    ]


def _labels(prompt: PromptCounts) -> Table:
    total = sum(prompt.labels.values()) or 1
    ranked = sorted(prompt.labels.items(), key=lambda each: -each[1])
    return Table(
        columns=("label", "rows", "share"), rows=[[label, f"{n:,}", percent(n / total)] for label, n in ranked]
    )


def _images(prompt: PromptCounts) -> list[Markup]:
    ranked = sorted(prompt.labels.items(), key=lambda each: -each[1])[:_MOST_BARS][::-1]
    labels = Figure(figsize=(5.2, 0.9 + 0.2 * len(ranked)), layout="constrained")
    axes = labels.add_subplot()
    axes.barh([label for label, _ in ranked], [n for _, n in ranked], color="#558")
    axes.set(xlabel="rows")
    confidence = Figure(figsize=(5.2, 2.6), layout="constrained")
    axes = confidence.add_subplot()
    axes.bar([i / N_BINS for i in range(N_BINS)], prompt.histogram, width=1 / N_BINS, align="edge", color="#855")
    axes.set(xlabel="probability of the most probable label", ylabel="rows", xlim=(0, 1))
    return [
        svg_image(labels, f"{prompt.prompt}: rows by label"),
        svg_image(confidence, f"{prompt.prompt}: rows by probability"),
    ]
