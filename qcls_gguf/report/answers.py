"""How `qcls-gguf run` prints answers, one after the other as they come."""

import csv
import heapq
import sys
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Literal

from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from ..config.scoring import JOINT
from ..config.words import JsonObject, counted, printable
from ..data.rows import Row
from ..score.result import PromptResult, Result
from .document import console, percent
from .record import json_text

Format = Literal["table", "json", "jsonl", "labels", "csv", "tsv"]
BLANK = "blank line"
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_BAR_CELLS, _NUMBER_CELLS = 12, 6
_GAP = "  "


class AnswerWriter:
    """Prints one answer after the other to standard output, in a format, as they come.

    table: a table a query, as wide as the terminal; labels: a line a query, the labels in the order of the prompts,
    parted by tabs, empty where there are none; csv, tsv: the line, the query, label and probability by prompt, and
    what was wrong; jsonl: an object a line, with the line that it came with, and the model's hash in place of all
    about it; json: one document, the object of the only query, or a list.
    """

    def __init__(
        self, kind: Format, prompts: Sequence[str], *, n_top: int | None = None, only_one: bool = False
    ) -> None:
        """n_top: labels of a prompt that are shown, or keep their scores, 0 or None: all; only_one: in a document."""
        self._kind, self._n_top, self._only_one = kind, n_top, only_one
        self._console, self._n_written = console(), 0
        self._columns = [name + suffix for name in prompts for suffix in ("", "_probability")]
        delimiter = "\t" if kind == "tsv" else ","
        self._print_row = csv.writer(sys.stdout, delimiter=delimiter, lineterminator="\n").writerow
        if kind in ("csv", "tsv"):
            self._print_row(["line", "query", *self._columns, "error"])

    def write(self, line: Row, answer: Result | str | None) -> None:
        """Print a query's answer; a text: why it has none; None: the line is blank."""
        result = answer if isinstance(answer, Result) else None
        match self._kind:
            case "table" if result:
                self._console.print(result_table(result, self._n_top or 0))
            case "table":
                if answer is None:
                    self._console.print(f"(line {line.number} is blank)\n", style="dim")
            case "labels":
                labels = [prompt.label for prompt in result.results] if result else []
                print(*map(printable, labels), sep="\t", flush=True)
            case "csv" | "tsv":
                cells, error = [""] * len(self._columns), str(answer or BLANK)
                if result:
                    pairs = ((prompt.label, f"{prompt.probability:.6f}") for prompt in result.results)
                    cells, error = [cell for pair in pairs for cell in pair], ""
                self._print_row(["" if line.number is None else line.number, line.text, *cells, error])
                sys.stdout.flush()
            case _:
                self._print_json(line, answer)

    def _print_json(self, line: Row, answer: Result | str | None) -> None:
        record: JsonObject = {"query": line.text, **({"blank": True} if answer is None else {"error": answer})}
        if isinstance(answer, Result):
            record = answer.to_dict()
            if self._kind == "jsonl":
                del record["model"]
                record["model_sha256"] = answer.model.sha256
            for prompt in record["results"] if self._n_top else []:
                prompt["scores"] = heapq.nlargest(self._n_top or 0, prompt["scores"], key=itemgetter("probability"))
        if line.number is not None:
            record = {"line": line.number, **record}
        before = ""
        if self._kind == "json" and not self._only_one:
            before = ",\n" if self._n_written else "[\n"
        self._n_written += 1
        end = "" if before else "\n"
        print(before, json_text(record, indent=2 if self._kind == "json" else None), sep="", end=end, flush=True)

    def close(self) -> None:
        """Print what comes after the last answer."""
        if self._kind == "json" and not self._only_one:
            print("\n]" if self._n_written else "[]", flush=True)


def result_table(result: Result, n_top: int) -> Group:
    """One query's answer: by prompt the label, a bar, its probability, the next labels and the audit; then times and
    counts. n_top: labels of a prompt that are shown, 0: all.
    """
    title = Text.assemble((printable(result.query) or "(empty query)", "bold"), f"  {result.total_ms:.2f} ms")
    numbers = (
        Column(no_wrap=True, min_width=_NUMBER_CELLS),
        Column(min_width=_NUMBER_CELLS, overflow="fold"),
    )  # none is cut
    grid = Table.grid(*(Column(overflow="fold") for _ in range(3)), *numbers, padding=(0, len(_GAP), 0, 0))
    for answer in result.results:
        label = Text(printable(answer.label), "bold yellow" if answer.abstained else "bold")
        others, share = Group(*_other_labels(answer, n_top)), f"{percent(answer.probability):>6}"
        grid.add_row(
            Text(printable(answer.prompt), "dim"), label, Text(bar(answer.probability), "green"), share, others
        )
    counts = result.counts
    told = [
        *(counted(counts.n_decodes, "decode"), f"{counts.n_tokens_new} tokens new"),
        *(f"{counts.n_tokens_cached} cached", counted(counts.n_positions, "position")),
        *([f"{counted(result.n_chars_cut, 'character')} of a long query left out"] if result.n_chars_cut else []),
    ]
    times = _GAP.join(f"{stage} {ms:.2f}" for stage, ms in result.stage_ms.items())
    return Group(title, grid, Text(f"ms: {times}", "dim"), Text(", ".join(told), "dim"), Text())


def _other_labels(answer: PromptResult, n_top: int) -> Iterator[Text]:
    """The next labels, and the audit."""
    ranked = sorted(answer.scores, key=lambda score: score.probability, reverse=True)
    # after abstention the most probable label is shown, too
    shown = ranked[0 if answer.abstained else 1 : n_top or None]
    others = [f"{printable(label.label)} {percent(label.probability)}" for label in shown]
    if others:
        yield Text(("abstained: " if answer.abstained else "") + _GAP.join(others), "dim")
    if audit := answer.audit:
        by_joint = answer.scores[audit.joint.index(max(audit.joint))].label
        agrees = by_joint == answer.most_probable
        judged = f"{JOINT} {'agrees' if agrees else f'picks {printable(by_joint)}'}"
        yield Text(f"audit: label mass {percent(audit.label_mass)}, {judged}", "dim" if agrees else "yellow")


def bar(fraction: float) -> str:
    """A bar of _BAR_CELLS cells, in steps of an eighth of a cell."""
    full, rest = divmod(round(fraction * _BAR_CELLS * 8), 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(_BAR_CELLS)
