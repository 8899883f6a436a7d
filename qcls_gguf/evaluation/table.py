"""An evaluation for people: tables on standard output."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.text import Text

from ..report.numbers import number, percent
from ..report.tables import Table, terminal_table

_N_CONFUSIONS = 10
_N_WORST = 5


MODE_COLUMNS = (
    "mode", "rows", "accuracy (95 %)", "macro-F1", "log-loss", "Brier", "ECE", "as joint", "mass", "p50 ms", "tokens",
)  # fmt: skip


def mode_row(mode: str, found: dict[str, Any]) -> list[str]:
    """The cells of MODE_COLUMNS for one mode, of all prompts or of one."""
    if "accuracy" not in found:
        return [mode, "–", "not applicable", *["–"] * (len(MODE_COLUMNS) - 3)]
    interval, mass = found["accuracy_ci"], found["label_mass"]
    return [
        mode,
        str(found["n_rows"]),
        percent(found["accuracy"]) + (f" ({interval[0]:.1%}–{interval[1]:.1%})" if interval else ""),
        number(found["macro_f1"]),
        number(found["log_loss"]),
        number(found["brier"]),
        number(found["ece"]),
        percent(found["agreement_with_joint"]),
        number(mass and mass["mean"]),
        number(found.get("p50_ms"), 2),
        number(found.get("n_tokens_new"), 1),
    ]


def modes_table_of(modes: dict[str, Any], columns: tuple[str, ...] = MODE_COLUMNS) -> Table:
    """A row a mode, of all prompts or of one; columns: the first of MODE_COLUMNS."""
    return Table(columns=columns, rows=[mode_row(mode, found)[: len(columns)] for mode, found in modes.items()])


def evaluation_tables(evaluation: dict[str, Any]) -> Group:
    """The modes, the accuracy of each prompt, the most frequent confusions and the worst-scored rows."""
    modes = evaluation["modes"]
    tables = [modes_table_of(modes)]
    names = list(next(iter(modes.values()))["prompts"])
    tables.append(Table(columns=("accuracy of", *modes), rows=[[name, *_accuracies(modes, name)] for name in names]))
    first = next(iter(modes))
    wrong = [
        (each["n"], name, each["label"], each["answer"])
        for name, found in modes[first]["prompts"].items()
        for each in found.get("confusions", [])
    ]
    wrong.sort(key=lambda each: -each[0])
    if wrong:
        rows = [[name, label, answer, str(n)] for n, name, label, answer in wrong[:_N_CONFUSIONS]]
        tables.append(Table(columns=(f"confused by {first}", "label", "answer", "rows"), rows=rows, n_text=3))
    worst = [each for each in evaluation["worst"] if each["mode"] == first][:_N_WORST]
    rows = [[each["prompt"], "|".join(each["accepted"]), each["answer"], f"line {each['line']}: {each['query']}",
             number(each["p_accepted"])] for each in worst]  # fmt: skip
    columns = (f"worst by {first}", "accepted", "answer", "row", "probability")
    tables.append(Table(columns=columns, rows=rows, n_text=4))
    remarks = [Text(note, style="bold") for note in notes(evaluation)]
    return Group(*(terminal_table(table, gap=1) for table in tables), *remarks)


def notes(evaluation: dict[str, Any]) -> list[str]:
    """What is left out of the numbers, in words."""
    counts = evaluation["data"]
    found = [
        f"{name}: {mode} is not applicable: {prompt['not_applicable']}"
        for mode, each in evaluation["modes"].items()
        for name, prompt in each["prompts"].items()
        if "not_applicable" in prompt
    ]
    if counts["n_bad"]:
        lines = ", ".join(str(bad["line"]) for bad in counts["bad"])
        found.append(f"{counts['n_bad']} rows could not be used and are left out: lines {lines}")
    if evaluation["non_finite"]:
        lines = ", ".join(str(row["line"]) for row in evaluation["non_finite"])
        n = len(evaluation["non_finite"])
        found.append(f"{n} rows have scores that are not finite, and are left out: lines {lines}")
    return found


def _accuracies(modes: dict[str, Any], name: str) -> list[str]:
    return [
        "not applicable" if "accuracy" not in mode["prompts"][name] else percent(mode["prompts"][name]["accuracy"])
        for mode in modes.values()
    ]
