"""What an evaluation says of shuffled labels and of drift: as tables for people, and as rows for the HTML report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ..report.results import printable
from .table import number, percent


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One table, of which the first n_text columns are text."""

    title: str
    columns: tuple[str, ...]
    rows: list[list[str]]
    n_text: int


def robustness_sections(evaluation: dict[str, Any]) -> Iterator[Section]:
    """The tables of `shuffle_labels` and `drift`, where the record has them."""
    if shuffled := evaluation.get("shuffle_labels"):
        yield Section(
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
        yield Section(
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
    return Group(*(part for section in robustness_sections(evaluation) for part in _shown(section)))


def _shown(section: Section) -> Iterator[Text | Table]:
    yield Text(section.title, style="bold")
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for i, column in enumerate(section.columns):
        table.add_column(column, justify="left" if i < section.n_text else "right", overflow="fold")
    for row in section.rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    table.add_row()
    yield table


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
    return ["–" if value is None else f"{value:.1e}" for value in values]


def _flips(title: str, flips: list[dict[str, Any]]) -> Iterator[Section]:
    if flips:
        rows = [
            [each["mode"], each["prompt"], f"line {each['line']}: {each['query']}", each["answer"],
             each["other_answer"], number(each["probability"]), number(each["other_probability"]),
             number(each["margin"])]
            for each in flips
        ]  # fmt: skip
        columns = ("mode", "prompt", "row", "answer", "other answer", "p", "other p", "margin")
        yield Section(title=title, columns=columns, rows=rows, n_text=5)
