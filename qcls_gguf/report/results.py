"""Results for people: tables on standard output, the start-up on standard error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..config.scoring import JOINT, MEAN
from ..config.words import counted, printable
from ..score.result import Audit, PromptResult, Result

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_BAR_CELLS = 12
_MIN_WIDTH = 100  # where standard output is no terminal
_GAP = "  "
_PERCENT_CELLS = len("100.0%")
_LEAST_FOR_OTHERS = 24
"""with fewer columns beside the number an answer has no bar, and its other labels stand on lines of their own"""


def bar(fraction: float) -> str:
    """A bar of _BAR_CELLS cells, in steps of an eighth of a cell."""
    eighths = round(fraction * _BAR_CELLS * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(_BAR_CELLS)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to the command, which ends quietly; rich would exit with 1."""
        raise BrokenPipeError


def console(*, stderr: bool = False) -> Console:
    """A console that keeps tables wide where it writes to a file or pipe."""
    made = _Console(stderr=stderr, highlight=False, soft_wrap=stderr)
    if not made.is_terminal:
        made = _Console(stderr=stderr, highlight=False, soft_wrap=stderr, width=max(_MIN_WIDTH, made.width))
    return made


def result_table(result: Result, n_top: int, *, width: int = _MIN_WIDTH) -> Group:
    """One query's answer: a row a prompt with its winner and the next labels, then times and counts.

    width: of the terminal, in columns; no number is cut or parted from its name, however few there are.
    """
    title = Text.assemble((printable(result.query) or "(empty query)", "bold"), f"  {result.total_ms:.2f} ms")
    n_name = max(cell_len(printable(answer.prompt)) for answer in result.results)
    n_label = max(cell_len(printable(answer.label)) for answer in result.results)
    n_others = width - n_name - n_label - _BAR_CELLS - _PERCENT_CELLS - 4 * len(_GAP)
    if n_others >= _LEAST_FOR_OTHERS:
        answers: RenderableType = _wide(result, n_top, n_others)
    else:
        n_name = min(n_name, width // 3)
        answers = _narrow(result, n_top, width, n_name, min(n_label, width - n_name - _PERCENT_CELLS - 2 * len(_GAP)))
    stages = [f"{stage} {ms:.2f}" for stage, ms in result.stage_ms.items()]
    counts = result.counts
    numbers = [
        f"{counted(counts.n_decodes, 'decode')},",
        f"{counts.n_tokens_new} tokens new,",
        f"{counts.n_tokens_cached} cached,",
        counted(counts.n_positions, "position"),
    ]
    by_stage = Counter(answer.stage for answer in result.results if answer.stage is not None)
    numbers += [f"{counted(n, 'answer')} by {printable(stage)}" for stage, n in by_stage.items()]
    return Group(
        title,
        answers,
        Text(_lines([f"ms: {stages[0]}", *stages[1:]], width), style="dim"),
        Text(_lines(numbers, width, gap=" "), style="dim"),
        Text(),
    )


def _wide(result: Result, n_top: int, n_others: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(style="green", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim", overflow="fold")
    for answer in result.results:
        others = Text(_lines(_others(answer, n_top), n_others))
        if answer.audit is not None:
            others.append("\n").append_text(_audit(answer, answer.audit, n_others))
        table.add_row(
            Text(printable(answer.prompt)), Text(printable(answer.label), style=_style(answer)),
            bar(answer.probability), _percent(answer.probability), others,
        )  # fmt: skip
    return table


def _narrow(result: Result, n_top: int, width: int, n_name: int, n_label: int) -> Group:
    """Name, label and number on a line that fits, what is told beside them on the next ones."""
    indent = " " * len(_GAP)
    parts: list[RenderableType] = []
    for answer in result.results:
        parts.append(
            Text.assemble(
                (_cut(printable(answer.prompt), n_name), "dim"),
                _GAP,
                (_cut(printable(answer.label), n_label), f"bold {_style(answer)}".strip()),
                f"{_GAP}{_percent(answer.probability):>{_PERCENT_CELLS}}",
            )
        )
        if others := _others(answer, n_top):
            lines = _lines(others, width - len(indent)).split("\n")
            parts.append(Text("\n".join(f"{indent}{line}" for line in lines), style="dim"))
        if answer.audit is not None:
            audit = _audit(answer, answer.audit, width - len(indent))
            parts.append(Text("\n".join(f"{indent}{line}" for line in audit.plain.split("\n")), style=audit.style))
    return Group(*parts)


def _style(answer: PromptResult) -> str:
    return "yellow" if answer.abstained else ""


def _cut(text: str, n: int) -> str:
    """The text in n columns, its end cut off where it is longer."""
    return set_cell_size(text, n) if cell_len(text) <= n else f"{set_cell_size(text, n - 1)}…"


def _lines(parts: Sequence[str], width: int, *, gap: str = _GAP) -> str:
    """The parts one after the other, broken between them only."""
    lines = [""]
    for part in parts:
        longer = f"{lines[-1]}{gap}{part}" if lines[-1] else part
        if cell_len(longer) <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(part)
    return "\n".join(lines)


def _percent(probability: float) -> str:
    return f"{probability:.1%}"


def _others(answer: PromptResult, n_top: int) -> list[str]:
    ranked = sorted(answer.scores, key=lambda score: score.probability, reverse=True)
    # who abstained shows the label that would have been the answer as well
    shown = ranked[0 if answer.abstained else 1 : n_top or None]
    others = [f"{printable(score.label)} {_percent(score.probability)}" for score in shown]
    return [f"abstained: {others[0]}", *others[1:]] if answer.abstained and others else others


def _audit(answer: PromptResult, audit: Audit, width: int) -> Text:
    """The label mass, and what the exact scores find; said aloud where they pick another label."""
    most_probable = answer.most_probable
    picks = {JOINT: audit.joint_label, MEAN: audit.mean_label}
    others = [f"{name} picks {printable(label)}" for name, label in picks.items() if label != most_probable]
    agreeing = " and ".join(name for name, label in picks.items() if label == most_probable)
    verb = "agree" if len(others) == 0 else "agrees"
    parts = [f"audit: label mass {_percent(audit.label_mass)}", *others, *([f"{agreeing} {verb}"] if agreeing else [])]
    text = _lines([*(f"{part}," for part in parts[:-1]), parts[-1]], width, gap=" ")
    return Text(text, style="yellow" if audit.changes else "")
