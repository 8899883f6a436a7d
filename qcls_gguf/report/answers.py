"""How `qcls-gguf run` prints answers, one after the other as they come: a writer for each format."""

from __future__ import annotations

import csv
import heapq
import sys
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..config.scoring import JOINT, MEAN
from ..config.words import JsonObject, counted, printable
from ..data.rows import Row
from ..score.result import PromptResult, Result
from .document import console, percent
from .record import json_text

BLANK = "blank line"
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_BAR_CELLS = 12
_GAP = "  "
_LEAST_FOR_OTHERS = 36
"""with fewer columns beside name, label and bar, an answer has no bar, and the other labels stand below it"""


class AnswerWriter:
    """Prints one answer after the other to standard output. Subclasses say how."""

    def write(self, line: Row, answer: Result | str | None) -> None:
        """Print a query's answer; a text: why it has none; None: the line is blank."""
        raise NotImplementedError

    def close(self) -> None:
        """Print what comes after the last answer."""


class Tables(AnswerWriter):
    """A table for each query, as wide as the terminal."""

    def __init__(self, n_top: int) -> None:
        self._console, self._n_top = console(), n_top

    def write(self, line: Row, answer: Result | str | None) -> None:
        if isinstance(answer, Result):
            self._console.print(result_table(answer, self._n_top, width=self._console.width))
        elif answer is None:
            self._console.print(f"(line {line.number} is blank)\n", style="dim")


class Labels(AnswerWriter):
    """A line for each query: the labels, in the order of the prompts, separated by tabs; empty where there are none."""

    def write(self, line: Row, answer: Result | str | None) -> None:
        answers = answer.results if isinstance(answer, Result) else ()
        print(*(printable(each.label) for each in answers), sep="\t", flush=True)


class Rows(AnswerWriter):
    """CSV: the line, the query, for each prompt its label and probability, and what was wrong."""

    def __init__(self, prompts: Sequence[str], *, delimiter: str) -> None:
        self._print = csv.writer(sys.stdout, delimiter=delimiter, lineterminator="\n").writerow
        columns = [name + suffix for name in prompts for suffix in ("", "_probability")]
        self._empty = [""] * len(columns)
        self._print(["line", "query", *columns, "error"])

    def write(self, line: Row, answer: Result | str | None) -> None:
        cells, error = self._empty, answer or BLANK
        if isinstance(answer, Result):
            cells, error = [], ""
            for each in answer.results:
                cells += [each.label, f"{each.probability:.6f}"]
        self._print(["" if line.number is None else line.number, line.text, *cells, error])
        sys.stdout.flush()


class JsonLines(AnswerWriter):
    """An object a line, with the line that it came with, and the model's hash in place of all about it."""

    def __init__(self, n_scores: int | None) -> None:
        """n_scores: how many of the most probable labels keep their scores; None: all, as configured."""
        self._n_scores = n_scores

    def write(self, line: Row, answer: Result | str | None) -> None:
        place = {} if line.number is None else {"line": line.number}
        if not isinstance(answer, Result):
            what = {"blank": True} if answer is None else {"error": answer}
            self._print({**place, "query": line.text, **what})
            return
        record = self._record(answer)
        if self._n_scores is not None:
            for each in record["results"]:
                each["scores"] = heapq.nlargest(self._n_scores, each["scores"], key=lambda score: score["probability"])
        self._print({**place, **record})

    def _record(self, result: Result) -> JsonObject:
        record = result.to_dict()
        del record["model"]
        return {**record, "model_sha256": result.model.sha256}

    def _print(self, value: JsonObject) -> None:
        print(json_text(value), flush=True)


class JsonDocument(JsonLines):
    """One JSON document: the object of the only query, or a list."""

    def __init__(self, n_scores: int | None, *, only_one: bool) -> None:
        super().__init__(n_scores)
        self._only_one, self._n_written = only_one, 0

    def _record(self, result: Result) -> JsonObject:
        return result.to_dict()

    def _print(self, value: JsonObject) -> None:
        before = "" if self._only_one else ",\n" if self._n_written else "[\n"
        print(before, json_text(value, indent=2), sep="", end="\n" if self._only_one else "", flush=True)
        self._n_written += 1

    def close(self) -> None:
        if not self._only_one:
            print("\n]" if self._n_written else "[]", flush=True)


def result_table(result: Result, n_top: int, *, width: int = 100) -> Group:
    """One query's answer: a row a prompt with its winner and the next labels, then times and counts.

    n_top: labels of a prompt that are shown, 0: all; width: of the terminal, in columns: no number is cut, however few
    there are.
    """
    title = Text.assemble((printable(result.query) or "(empty query)", "bold"), f"  {result.total_ms:.2f} ms")
    counts = result.counts
    numbers = [
        *(counted(counts.n_decodes, "decode"), f"{counts.n_tokens_new} tokens new"),
        *(f"{counts.n_tokens_cached} cached", counted(counts.n_positions, "position")),
        *([f"{counted(result.n_chars_cut, 'character')} of a long query left out"] if result.n_chars_cut else []),
    ]
    times = _GAP.join(f"{stage} {ms:.2f}" for stage, ms in result.stage_ms.items())
    return Group(
        title,
        *_answers(result, n_top, width),
        Text(f"ms: {times}", "dim"),
        Text(", ".join(numbers), "dim"),
        Text(),
    )


def _answers(result: Result, n_top: int, width: int) -> Iterator[RenderableType]:
    """For each prompt name, label, bar and probability; beside or below them the next labels and the audit."""
    names = [printable(answer.prompt) for answer in result.results]
    labels = [printable(answer.label) for answer in result.results]
    n_head = max(map(cell_len, names)) + max(map(cell_len, labels)) + _BAR_CELLS
    grid = Table.grid(padding=(0, len(_GAP), 0, 0))
    for answer, name, label in zip(result.results, names, labels, strict=True):
        style = "bold yellow" if answer.abstained else "bold"
        others, share = Group(*_other_labels(answer, n_top)), f"{percent(answer.probability):>6}"
        if width - n_head >= _LEAST_FOR_OTHERS:
            grid.add_row(Text(name, "dim"), Text(label, style), Text(bar(answer.probability), "green"), share, others)
        else:
            yield Text.assemble((name + _GAP, "dim"), (label + _GAP, style), share)
            yield Padding(others, (0, 0, 0, len(_GAP)))
    yield grid


def _other_labels(answer: PromptResult, n_top: int) -> Iterator[Text]:
    """The next labels, and the audit."""
    ranked = sorted(answer.scores, key=lambda score: score.probability, reverse=True)
    # after abstention the most probable label is shown, too
    shown = ranked[0 if answer.abstained else 1 : n_top or None]
    others = [f"{printable(each.label)} {percent(each.probability)}" for each in shown]
    if others:
        yield Text(("abstained: " if answer.abstained else "") + _GAP.join(others), "dim")
    if audit := answer.audit:
        picks = {JOINT: audit.joint_label, MEAN: audit.mean_label}
        agreeing = [name for name, label in picks.items() if label == answer.most_probable]
        found = [f"{name} picks {printable(label)}" for name, label in picks.items() if name not in agreeing]
        if agreeing:
            found.append(f"{' and '.join(agreeing)} {'agrees' if found else 'agree'}")
        mass = f"audit: label mass {percent(audit.label_mass)}"
        yield Text(", ".join([mass, *found]), "yellow" if audit.changes else "dim")


def bar(fraction: float) -> str:
    """A bar of _BAR_CELLS cells, in steps of an eighth of a cell."""
    full, rest = divmod(round(fraction * _BAR_CELLS * 8), 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(_BAR_CELLS)
