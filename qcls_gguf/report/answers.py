"""How `qcls-gguf run` prints answers, one after the other as they come: a writer for each format."""

from __future__ import annotations

import csv
import heapq
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Group
from rich.text import Text

from ..config.scoring import JOINT, MEAN
from ..config.words import JsonObject, counted, printable
from ..data.queries import Line
from ..score.result import Audit, PromptResult, Result
from .document import console, percent
from .record import json_text

BLANK = "blank line"
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_BAR_CELLS = 12
_GAP = "  "
_PERCENT_CELLS = len("100.0%")
_LEAST_FOR_OTHERS = 24
"""with fewer columns beside the number an answer has no bar, and its other labels stand on lines of their own"""


class AnswerWriter:
    """Prints one answer after the other to standard output. Subclasses say how."""

    def write(self, line: Line, answer: Result | str | None) -> None:
        """Print a query's answer; a text: why it has none; None: the line is blank."""
        raise NotImplementedError

    def close(self) -> None:
        """Print what comes after the last answer."""


class Tables(AnswerWriter):
    """A table for each query, as wide as the terminal."""

    def __init__(self, n_top: int) -> None:
        self._console, self._n_top = console(), n_top

    def write(self, line: Line, answer: Result | str | None) -> None:
        if isinstance(answer, Result):
            self._console.print(result_table(answer, self._n_top, width=self._console.width))
        elif answer is None:
            self._console.print(f"(line {line.number} is blank)\n", style="dim")


class Labels(AnswerWriter):
    """A line for each query: the labels, in the order of the prompts, separated by tabs; empty where there are none."""

    def write(self, line: Line, answer: Result | str | None) -> None:
        answers = answer.results if isinstance(answer, Result) else ()
        print(*(printable(each.label) for each in answers), sep="\t", flush=True)


class Rows(AnswerWriter):
    """CSV: the line, the query, for each prompt its label and probability, and what was wrong."""

    def __init__(self, prompts: Sequence[str], *, delimiter: str) -> None:
        self._print = csv.writer(sys.stdout, delimiter=delimiter, lineterminator="\n").writerow
        columns = [name + suffix for name in prompts for suffix in ("", "_probability")]
        self._empty = [""] * len(columns)
        self._print(["line", "query", *columns, "error"])

    def write(self, line: Line, answer: Result | str | None) -> None:
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

    def write(self, line: Line, answer: Result | str | None) -> None:
        place = {} if line.number is None else {"line": line.number}
        if not isinstance(answer, Result):
            what = {"blank": True} if answer is None else {"error": answer}
            self._print({**place, "query": line.text, **what})
            return
        told = self._told(answer)
        if self._n_scores is not None:
            for each in told["results"]:
                each["scores"] = heapq.nlargest(self._n_scores, each["scores"], key=lambda score: score["probability"])
        self._print({**place, **told})

    def _told(self, result: Result) -> JsonObject:
        told = result.to_dict()
        del told["model"]
        return {**told, "model_sha256": result.model.sha256}

    def _print(self, value: JsonObject) -> None:
        print(json_text(value), flush=True)


class JsonDocument(JsonLines):
    """One JSON document: the object of the only query, or a list."""

    def __init__(self, n_scores: int | None, *, only_one: bool) -> None:
        super().__init__(n_scores)
        self._only_one, self._n_written = only_one, 0

    def _told(self, result: Result) -> JsonObject:
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

    n_top: labels of a prompt that are shown, 0: all; width: of the terminal, in columns: no number is cut or parted
    from its name, however few there are.
    """
    title = Text.assemble((printable(result.query) or "(empty query)", "bold"), f"  {result.total_ms:.2f} ms")
    counts = result.counts
    by_stage = Counter(answer.stage for answer in result.results if answer.stage is not None)
    numbers = [
        *(counted(counts.n_decodes, "decode"), f"{counts.n_tokens_new} tokens new"),
        *(f"{counts.n_tokens_cached} cached", counted(counts.n_positions, "position")),
        *(f"{counted(n, 'answer')} by {printable(stage)}" for stage, n in by_stage.items()),
    ]
    times = [f"{stage} {ms:.2f}" for stage, ms in result.stage_ms.items()]
    lines = _lines(["ms: " + times[0], *times[1:]], width) + _lines(numbers, width, gap=", ")
    return Group(title, *_answers(result, n_top, width), *(Text(line, style="dim") for line in lines), Text())


def _answers(result: Result, n_top: int, width: int) -> Iterator[Text]:
    """For each prompt its name, label, a bar and the probability, and beside or below them what else is told."""
    n_name = max(cell_len(printable(answer.prompt)) for answer in result.results)
    n_label = max(cell_len(printable(answer.label)) for answer in result.results)
    n_head = n_name + n_label + _BAR_CELLS + _PERCENT_CELLS + 4 * len(_GAP)
    is_wide = width - n_head >= _LEAST_FOR_OTHERS
    if not is_wide:
        n_name = min(n_name, width // 3)
        n_label = min(n_label, width - n_name - _PERCENT_CELLS - 2 * len(_GAP))
    indent = n_head if is_wide else len(_GAP)
    for answer in result.results:
        line = Text.assemble(
            (_padded(printable(answer.prompt), n_name) + _GAP, "dim"),
            (_padded(printable(answer.label), n_label) + _GAP, "bold yellow" if answer.abstained else "bold"),
            (f"{bar(answer.probability)}{_GAP}" if is_wide else "", "green"),
            f"{percent(answer.probability):>{_PERCENT_CELLS}}",
        )
        told = [Text(each, style="dim") for each in _lines(_others(answer, n_top), width - indent)]
        if audit := answer.audit:
            style = "yellow" if audit.changes else "dim"
            told += [Text(each, style) for each in _lines(_audit(answer, audit), width - indent, gap=", ")]
        if is_wide and told:
            line.append(_GAP).append_text(told.pop(0))
        yield line
        for each in told:
            yield Text(" " * indent).append_text(each)


def bar(fraction: float) -> str:
    """A bar of _BAR_CELLS cells, in steps of an eighth of a cell."""
    full, rest = divmod(round(fraction * _BAR_CELLS * 8), 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(_BAR_CELLS)


def _padded(text: str, n: int) -> str:
    """The text in n columns, its end cut off where it is longer."""
    return set_cell_size(text, n) if cell_len(text) <= n else f"{set_cell_size(text, n - 1)}…"


def _lines(parts: Sequence[str], width: int, *, gap: str = _GAP) -> list[str]:
    """The parts one after the other, broken between them only."""
    lines = list(parts[:1])
    for part in parts[1:]:
        if cell_len(longer := f"{lines[-1]}{gap}{part}") < width:
            lines[-1] = longer
        else:
            lines[-1] += gap.rstrip()
            lines.append(part)
    return lines


def _others(answer: PromptResult, n_top: int) -> list[str]:
    ranked = sorted(answer.scores, key=lambda score: score.probability, reverse=True)
    # who abstained shows the label that would have been the answer as well
    shown = ranked[0 if answer.abstained else 1 : n_top or None]
    others = [f"{printable(score.label)} {percent(score.probability)}" for score in shown]
    return [f"abstained: {others[0]}", *others[1:]] if answer.abstained and others else others


def _audit(answer: PromptResult, audit: Audit) -> list[str]:
    """The label mass, and what the exact scores find."""
    picks = {JOINT: audit.joint_label, MEAN: audit.mean_label}
    agreeing = [name for name, label in picks.items() if label == answer.most_probable]
    found = [f"{name} picks {printable(label)}" for name, label in picks.items() if name not in agreeing]
    if agreeing:
        found.append(f"{' and '.join(agreeing)} {'agrees' if found else 'agree'}")
    return [f"audit: label mass {percent(audit.label_mass)}", *found]
