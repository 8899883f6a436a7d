"""An advice as one HTML page without links: agreement against latency, tables, disagreements, configurations.

Needs the extra `report`.
"""

from __future__ import annotations

from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from ..config.words import counted
from ..report.html import drawing, page, svg_image
from ..report.numbers import percent
from .records import AdviceRecord, CandidateRecord
from .table import candidates_table, disagreements_table, prompts_table, remarks, thresholds_table


def advice_html(record: AdviceRecord) -> str:
    """The page of a record."""
    tried = [each for each in record.candidates if each.state in ("tried", "dropped")]
    with drawing():
        return page(
            "advise.html",
            reason=record.reason,
            facts=_facts(record),
            candidates=candidates_table(record),
            images=[_image(record)] if any(each.latency for each in record.candidates) else [],
            remarks=remarks(record),
            tried=[_candidate(each) for each in tried],
        )


def _facts(record: AdviceRecord) -> list[tuple[str, str]]:
    queries, model, where = record.queries, record.model, record.environment
    return [
        ("queries", f"{queries.path}: {queries.n_queries}, {queries.n_labelled} of them labelled"),
        ("queries sha256", queries.sha256),
        ("limit", f"{percent(record.min_agreement)} equal answers in every prompt"),
        ("model", f"{model.path}: {model.description}"),
        ("model sha256", model.sha256),
        ("device", f"{model.device}, {model.backend}, {counted(where.n_threads, 'thread')}, {where.os}"),
        ("versions", f"qcls-gguf {model.package_version}, llama.cpp {model.llama_cpp_commit} patched"),
    ]


def _candidate(each: CandidateRecord) -> dict[str, Any]:
    return {
        "name": each.name,
        "why": each.why,
        "prompts": prompts_table(each),
        "thresholds": thresholds_table(each.cascade) if each.cascade else None,
        "disagreements": disagreements_table(each),
        "yaml": each.yaml,
        "first_yaml": each.cascade.yaml if each.cascade else None,
    }


def _image(record: AdviceRecord) -> Markup:
    """A point for each candidate that was timed; a line joins those that none beats."""
    timed = [each for each in record.candidates if each.time_share and each.least_agreement is not None]
    points = {each.name: (each.time_share or 0, 100 * (each.least_agreement or 0)) for each in timed}
    figure = Figure(figsize=(9.5, 4.2), layout="constrained")
    axes = figure.add_subplot()
    front = sorted(points[each.name] for each in timed if each.is_pareto)
    axes.plot(*zip(*front, strict=True), color="#999", linewidth=1, zorder=1) if front else None
    for number, each in enumerate(timed, 1):
        marker, size = ("*", 130) if each.name == record.recommended else ("o", 40)
        fill = "C0" if each.meets_limit else "white"
        label = f"{number}  {each.name}"
        axes.scatter(*points[each.name], marker=marker, s=size, c=fill, edgecolors="C0", zorder=3, label=label)
        axes.annotate(str(number), points[each.name], xytext=(6, 4), textcoords="offset points", fontsize=8)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes.axhline(100 * record.min_agreement, color="C3", linewidth=1, linestyle="--")
    axes.set(
        xlabel="a request's median time here, by the original's in the same turns",
        ylabel="least agreement of the prompts, %",
    )
    figure.suptitle("Agreement against latency; filled: keeps the limit (dashed); star: recommended")
    axes.set_xlim(left=0)
    axes.margins(x=0.15, y=0.1)
    return svg_image(figure, "agreement against latency")
