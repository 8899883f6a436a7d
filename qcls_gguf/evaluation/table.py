"""An evaluation for people: tables on standard output."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..report.results import printable

_N_CONFUSIONS = 10
_N_WORST = 5


def percent(value: float | None) -> str:
    """A share, or a dash where there is none."""
    return "–" if value is None else f"{value:.1%}"


def number(value: float | None, digits: int = 3) -> str:
    """A number, or a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}"


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


def evaluation_tables(evaluation: dict[str, Any]) -> Group:
    """The modes, the accuracy of each prompt, the most frequent confusions and the worst-scored rows."""
    modes = evaluation["modes"]
    parts: list[RenderableType] = [_table(MODE_COLUMNS, [mode_row(mode, found) for mode, found in modes.items()])]
    names = list(next(iter(modes.values()))["prompts"])
    parts.append(_table(("accuracy of", *modes), [[name, *_accuracies(modes, name)] for name in names]))
    first = next(iter(modes))
    wrong = [
        (each["n"], name, each["label"], each["answer"])
        for name, found in modes[first]["prompts"].items()
        for each in found.get("confusions", [])
    ]
    wrong.sort(key=lambda each: -each[0])
    if wrong:
        rows = [[name, label, answer, str(n)] for n, name, label, answer in wrong[:_N_CONFUSIONS]]
        parts.append(_table((f"confused by {first}", "label", "answer", "rows"), rows))
    worst = [each for each in evaluation["worst"] if each["mode"] == first][:_N_WORST]
    rows = [[each["prompt"], "|".join(each["accepted"]), number(each["p_accepted"]), each["answer"],
             f"line {each['line']}: {each['query']}"] for each in worst]  # fmt: skip
    parts.append(_table((f"worst by {first}", "accepted", "probability", "answer", "row"), rows))
    parts += [Text(note, style="bold") for note in notes(evaluation)]
    return Group(*parts)


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


def _table(columns: tuple[str, ...], rows: list[list[str]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for column in columns:
        is_text = column in ("mode", "label", "answer", "accepted", "row") or " of" in column or " by " in column
        table.add_column(column, justify="left" if is_text else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    table.add_row()
    return table
