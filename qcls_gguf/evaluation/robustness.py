"""What an evaluation says of shuffled labels and of drift: as tables for people, and as rows for the HTML report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ..report.numbers import number, percent, scientific
from ..report.tables import Table, terminal_table


def robustness_sections(evaluation: dict[str, Any]) -> Iterator[Table]:
    """The tables of `shuffle_labels` and `drift`, where the record has them."""
    if shuffled := evaluation.get("shuffle_labels"):
        yield Table(
            title=f"Labels listed in {shuffled['k']} other orders, seed {shuffled['seed']}",
            columns=("mode", "prompt", "rows", "flips", "flip rate", "accuracy", "mean", "min", "max", "largest Δp",
                     "mean Δp"),
            rows=[
                [mode, name, *_shuffled_cells(prompt)]
                for mode, found in shuffled["modes"].items()
                for name, prompt in found["prompts"].items()
            ],
            n_text=2,
        )  # fmt: skip
        yield from _flips("Flips by the order of the labels", shuffled["flips"])
    if drift := evaluation.get("drift"):
        yield Table(
            title="The same rows in other company",
            columns=("case", "rows", "answers", "flips", "largest Δp", "mean Δp"),
            rows=[
                [case, str(found["n_rows"]), str(found["n_answers"]), str(found["n_flips"]), *_difference_cells(found)]
                for case, found in drift.items()
            ],
            n_text=1,
        )
        for case, found in drift.items():
            yield from _flips(f"Flips by {case}", found["flips"])


def robustness_tables(evaluation: dict[str, Any]) -> Group:
    """The sections on standard output; nothing where there are none."""
    parts: list[RenderableType] = []
    for section in robustness_sections(evaluation):
        parts += [Text(section.title, style="bold"), terminal_table(section, gap=1)]
    return Group(*parts)


def _shuffled_cells(found: dict[str, Any]) -> list[str]:
    if "not_applicable" in found:
        return ["–", "not applicable", *["–"] * 7]
    accuracy = found["accuracy"]
    return [
        str(found["n_rows"]),
        str(found["n_flips"]),
        percent(found["flip_rate"]),
        *(percent(accuracy[key]) for key in ("configured", "mean", "min", "max")),
        *_difference_cells(found),
    ]


def _difference_cells(found: dict[str, Any]) -> list[str]:
    values = (found[f"{which}_probability_difference"] for which in ("largest", "mean"))
    return [scientific(value) for value in values]


def _flips(title: str, flips: list[dict[str, Any]]) -> Iterator[Table]:
    if flips:
        rows = [
            [each["mode"], each["prompt"], f"line {each['line']}: {each['query']}", each["answer"],
             each["other_answer"], number(each["probability"]), number(each["other_probability"]),
             number(each["margin"])]
            for each in flips
        ]  # fmt: skip
        columns = ("mode", "prompt", "row", "answer", "other answer", "p", "other p", "margin")
        yield Table(title=title, columns=columns, rows=rows, n_text=5)
