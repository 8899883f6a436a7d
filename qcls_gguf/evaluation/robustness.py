"""Shuffled labels and batch invariance as tables, whose rows the HTML report shows too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from ..report.numbers import NO_VALUE, number, percent, scientific
from ..report.tables import Table, terminal_table
from .records import EvaluationRecord
from .robustness_records import Differences, Flip, NotApplicable, ShuffledPrompt


def robustness_sections(evaluation: EvaluationRecord) -> Iterator[Table]:
    """The tables of `shuffle_labels` and `batch_invariance`, where the record has them."""
    if shuffled := evaluation.shuffle_labels:
        yield Table(
            title=f"Labels listed in {shuffled.k} other orders, seed {shuffled.seed}",
            columns=("mode", "prompt", "rows", "flips", "flip rate", "accuracy", "mean", "min", "max", "largest Δp",
                     "mean Δp"),
            rows=[
                [mode, name, *_shuffled_cells(prompt)]
                for mode, of_mode in shuffled.modes.items()
                for name, prompt in of_mode.prompts.items()
            ],
            n_text=2,
        )  # fmt: skip
        yield from _flips("Flips by the order of the labels", shuffled.flips)
    if invariance := evaluation.batch_invariance:
        cases = {
            "batches": invariance.batches,
            "traffic": invariance.traffic,
            "restored": invariance.restored,
            "fresh": invariance.fresh,
        }
        yield Table(
            title="Batch invariance: the same rows again",
            columns=("case", "rows", "answers", "flips", "largest Δp", "mean Δp"),
            rows=[
                [name, str(case.n_rows), str(case.n_answers), str(case.n_flips), *_difference_cells(case)]
                for name, case in cases.items()
            ],
            n_text=1,
        )
        for name, case in cases.items():
            yield from _flips(f"Flips by {name}", case.flips)


def robustness_tables(evaluation: EvaluationRecord) -> Group:
    """The sections as text on a terminal; empty where there are none."""
    parts: list[RenderableType] = []
    for section in robustness_sections(evaluation):
        parts += [Text(section.title, style="bold"), terminal_table(section, gap=1)]
    return Group(*parts)


def _shuffled_cells(prompt: ShuffledPrompt | NotApplicable) -> list[str]:
    if isinstance(prompt, NotApplicable):
        return [NO_VALUE, "not applicable", *[NO_VALUE] * 7]
    accuracy = prompt.accuracy
    return [
        str(prompt.n_rows),
        str(prompt.n_flips),
        percent(prompt.flip_rate),
        *map(percent, (accuracy.configured, accuracy.mean, accuracy.min, accuracy.max)),
        *_difference_cells(prompt),
    ]


def _difference_cells(differences: Differences) -> list[str]:
    values = differences.largest_probability_difference, differences.mean_probability_difference
    return [scientific(value) for value in values]


def _flips(title: str, flips: Sequence[Flip]) -> Iterator[Table]:
    if flips:
        rows = [
            [flip.mode, flip.prompt, f"line {flip.line}: {flip.query}", flip.answer, flip.other_answer,
             number(flip.probability), number(flip.other_probability), number(flip.margin)]
            for flip in flips
        ]  # fmt: skip
        columns = ("mode", "prompt", "row", "answer", "other answer", "p", "other p", "margin")
        yield Table(title=title, columns=columns, rows=rows, n_text=5)
