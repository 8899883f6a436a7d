"""Results for people: tables on standard output, the start-up on standard error."""

from __future__ import annotations

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from ..score.result import PromptResult, Result

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_BAR_CELLS = 12
_MIN_WIDTH = 100  # where standard output is no terminal


def printable(text: str) -> str:
    """The text with everything that could move a terminal's cursor shown as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


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


def result_table(result: Result, n_top: int) -> Group:
    """One query's answer: a row a prompt with its winner and the next labels, then times and counts."""
    title = Text.assemble((printable(result.query) or "(empty query)", "bold"), f"  {result.total_ms:.2f} ms")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(style="green", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim", overflow="fold")
    for answer in result.results:
        table.add_row(
            Text(answer.prompt), Text(answer.label, style="yellow" if answer.abstained else ""),
            bar(answer.probability), _percent(answer.probability), Text(_others(answer, n_top)),
        )  # fmt: skip
    stages = "  ".join(f"{stage} {ms:.2f}" for stage, ms in result.stage_ms.items())
    counts = result.counts
    numbers = (
        f"{counts.n_decodes} decode{'s' * (counts.n_decodes > 1)}, {counts.n_tokens_new} tokens new, "
        f"{counts.n_tokens_cached} cached, {counts.n_positions} positions"
    )
    return Group(title, table, Text(f"ms: {stages}", style="dim"), Text(numbers, style="dim"), Text())


def _percent(probability: float) -> str:
    return f"{probability:.1%}"


def _others(answer: PromptResult, n_top: int) -> str:
    ranked = sorted(answer.scores, key=lambda score: score.probability, reverse=True)
    # who abstained shows the label that would have been the answer as well
    shown = ranked[0 if answer.abstained else 1 : n_top or None]
    others = "  ".join(f"{score.label} {_percent(score.probability)}" for score in shown)
    return f"abstained: {others}" if answer.abstained else others
