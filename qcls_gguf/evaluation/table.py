"""An evaluation as text on a terminal: tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rich.console import Group, RenderableType
from rich.text import Text

from ..config.words import counted, printable
from ..report.numbers import NO_VALUE, number, percent
from ..report.tables import Table, terminal_table
from .records import (
    CascadeRecord,
    EvaluationRecord,
    ModeNotApplicable,
    ModeStatistics,
    PromptStatistics,
    Statistics,
)
from .robustness_records import NotApplicable

_N_CONFUSIONS = 10
_N_WORST = 5


PROMPT_COLUMNS = ("mode", "rows", "accuracy (95 %)", "macro-F1", "log-loss", "Brier", "ECE", "as joint", "mass")
MODE_COLUMNS = (*PROMPT_COLUMNS, "mean ms", "p50 ms", "tokens")


def mode_row(mode: str, statistics: ModeStatistics | ModeNotApplicable) -> list[str]:
    """The cells of MODE_COLUMNS for one mode over all prompts."""
    if isinstance(statistics, NotApplicable):
        return [*prompt_row(mode, statistics), NO_VALUE, NO_VALUE, NO_VALUE]
    mean_ms = statistics.latency.mean_ms if statistics.latency else None
    times = [number(mean_ms, 2), number(statistics.p50_ms, 2)]
    return [*prompt_row(mode, statistics), *times, number(statistics.n_tokens_new, 1)]


def prompt_row(mode: str, statistics: Statistics | NotApplicable) -> list[str]:
    """The cells of PROMPT_COLUMNS for one mode."""
    if isinstance(statistics, NotApplicable):
        return [mode, NO_VALUE, "not applicable", *[NO_VALUE] * (len(PROMPT_COLUMNS) - 3)]
    interval, mass = statistics.accuracy_ci, statistics.label_mass
    return [
        mode,
        str(statistics.n_rows),
        percent(statistics.accuracy) + (f" ({interval[0]:.1%}–{interval[1]:.1%})" if interval else ""),
        number(statistics.macro_f1),
        number(statistics.log_loss),
        number(statistics.brier),
        number(statistics.ece),
        percent(statistics.agreement_with_joint),
        number(mass.mean if mass else None),
    ]


def modes_tables(evaluation: EvaluationRecord) -> list[Table]:
    """A row for each mode; where one cannot score every prompt first all of them on the prompts that each can score."""
    modes = evaluation.modes
    every = Table(columns=MODE_COLUMNS, rows=[mode_row(mode, statistics) for mode, statistics in modes.items()])
    stages = [_stages_table(evaluation.cascade)] if evaluation.cascade else []
    common = evaluation.compared_prompts
    if common is None:
        return [every, *stages]
    n_all = len(next(iter(modes.values())).prompts)
    compared = {
        mode: statistics.compared
        for mode, statistics in modes.items()
        if isinstance(statistics, ModeStatistics) and statistics.compared is not None
    }
    rows = [[f"{mode} ({statistics.n_prompts})", *mode_row(mode, statistics)[1:]] for mode, statistics in modes.items()]
    return [
        replace(prompt_table(compared), title=f"Compared on {len(common)} of {n_all} prompts: {', '.join(common)}"),
        replace(
            every, title="Each mode on all prompts that it can score (number in brackets): not comparable", rows=rows
        ),
        *stages,
    ]


def _stages_table(cascade: CascadeRecord) -> Table:
    """Which stage answers how many of each prompt's rows, and how often as the last stage."""
    rows = [
        [name, *(percent(shares.stages.get(stage)) for stage in cascade.stages), percent(shares.agreement)]
        for name, shares in {**cascade.prompts, "all": cascade}.items()
    ]
    return Table(
        title="The cascade's answers", columns=("answered by", *cascade.stages, "as the last stage"), rows=rows
    )


def prompt_table(modes: Mapping[str, Statistics | NotApplicable]) -> Table:
    """A row for each mode, of one prompt."""
    return Table(columns=PROMPT_COLUMNS, rows=[prompt_row(mode, statistics) for mode, statistics in modes.items()])


def evaluation_tables(evaluation: EvaluationRecord) -> Group:
    """The modes, the accuracy of each prompt, the most frequent confusions and the worst-scored rows."""
    modes = evaluation.modes
    first, first_mode = next(iter(modes.items()))
    names = list(first_mode.prompts)
    tables = [
        *modes_tables(evaluation),
        Table(columns=("accuracy of", *modes), rows=[[name, *_accuracies(modes, name)] for name in names]),
    ]
    wrong = [
        (confusion, name)
        for name, prompt in first_mode.prompts.items()
        if isinstance(prompt, PromptStatistics)
        for confusion in prompt.confusions
    ]
    wrong.sort(key=lambda pair: -pair[0].n)
    if wrong:
        rows = [
            [name, confusion.label, confusion.answer, str(confusion.n)] for confusion, name in wrong[:_N_CONFUSIONS]
        ]
        tables.append(Table(columns=(f"confused by {first}", "label", "answer", "rows"), rows=rows, n_text=3))
    worst = [row for row in evaluation.worst if row.mode == first][:_N_WORST]
    rows = [
        [row.prompt, "|".join(row.accepted), row.answer, f"line {row.line}: {row.query}", number(row.p_accepted)]
        for row in worst
    ]
    columns = (f"worst by {first}", "accepted", "answer", "row", "probability")
    tables.append(Table(columns=columns, rows=rows, n_text=4))
    remarks = [Text(note, style="bold") for note in notes(evaluation)]
    parts: list[RenderableType] = []
    for table in tables:
        parts += [*([Text(printable(table.title), style="bold")] if table.title else []), terminal_table(table, gap=1)]
    return Group(*parts, *remarks)


def notes(evaluation: EvaluationRecord) -> list[str]:
    """What the statistics do not cover, a sentence each."""
    sentences = [
        f"{name}: {mode} is not applicable: {prompt.not_applicable}"
        for mode, statistics in evaluation.modes.items()
        for name, prompt in statistics.prompts.items()
        if isinstance(prompt, NotApplicable)
    ]
    data = evaluation.data
    if data.n_bad:
        lines = ", ".join(str(bad.line) for bad in data.bad)
        are, what = ("is", "line") if data.n_bad == 1 else ("are", "lines")
        sentences.append(f"{counted(data.n_bad, 'row')} could not be used and {are} left out: {what} {lines}")
    if evaluation.non_finite:
        lines = ", ".join(str(row.line) for row in evaluation.non_finite)
        n = len(evaluation.non_finite)
        sentences.append(f"{n} rows have scores that are not finite, and are left out: lines {lines}")
    return sentences


def _accuracies(modes: Mapping[str, ModeStatistics | ModeNotApplicable], name: str) -> list[str]:
    of_prompt = [mode.prompts[name] for mode in modes.values()]
    return [percent(part.accuracy) if isinstance(part, Statistics) else "not applicable" for part in of_prompt]
