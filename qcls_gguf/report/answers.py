"""How `qcls-gguf run` prints answers, one after the other as they come: a writer for each format."""

from __future__ import annotations

import csv
import heapq
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rich.cells import cell_len, set_cell_size
from rich.console import Group
from rich.text import Text

from ..config.scoring import JOINT, MEAN
from ..config.words import JsonObject, counted, printable
from ..data.queries import Line
from ..score.result import Audit, ModelInfo, PromptResult, Result
from .document import console
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

    def result(self, line: Line, result: Result) -> None:
        """Print a query's answer."""
        raise NotImplementedError

    def failure(self, line: Line, error: str) -> None:
        """Print what stands for a query that could not be labelled."""

    def blank(self, line: Line) -> None:
        """Print what stands for a line with nothing on it."""

    def close(self) -> None:
        """Print what comes after the last answer."""


class Tables(AnswerWriter):
    """A table for each query, as wide as the terminal."""

    def __init__(self, n_top: int) -> None:
        self._console, self._n_top = console(), n_top

    def result(self, line: Line, result: Result) -> None:
        self._console.print(result_table(result, self._n_top, width=self._console.width))

    def blank(self, line: Line) -> None:
        self._console.print(f"(line {line.number} is blank)\n", style="dim")


class Labels(AnswerWriter):
    """A line for each query: the labels, in the order of the prompts, separated by tabs; empty where there are none."""

    def result(self, line: Line, result: Result) -> None:
        print(*(printable(answer.label) for answer in result.results), sep="\t", flush=True)

    def failure(self, line: Line, error: str) -> None:
        print(flush=True)

    def blank(self, line: Line) -> None:
        print(flush=True)


class Rows(AnswerWriter):
    """CSV: the line or its id, the query, for each prompt its label and probability, and what was wrong."""

    def __init__(self, prompts: Sequence[str], *, delimiter: str, id_column: str | None, probabilities: bool) -> None:
        self._probabilities, self._by_id = probabilities, id_column is not None
        self._print = csv.writer(sys.stdout, delimiter=delimiter, lineterminator="\n").writerow
        columns = [name + suffix for name in prompts for suffix in (("", "_probability") if probabilities else ("",))]
        self._empty = [""] * len(columns)
        self._print([id_column or "line", "query", *columns, "error"])

    def result(self, line: Line, result: Result) -> None:
        cells: list[str] = []
        for answer in result.results:
            cells += [answer.label, f"{answer.probability:.6f}"] if self._probabilities else [answer.label]
        self._row(line, cells, "")

    def failure(self, line: Line, error: str) -> None:
        self._row(line, self._empty, error)

    def blank(self, line: Line) -> None:
        self._row(line, self._empty, BLANK)

    def _row(self, line: Line, cells: Sequence[str], error: str) -> None:
        place = line.id if self._by_id else line.number
        self._print(["" if place is None else place, line.text, *cells, error])
        sys.stdout.flush()


class Objects(AnswerWriter):
    """What JSON and JSON lines have in common: an object for each query, with the line or the id that it came with."""

    def __init__(self, n_scores: int | None) -> None:
        """n_scores: how many of the most probable labels keep their scores; None: all, as configured."""
        self._n_scores = n_scores

    def result(self, line: Line, result: Result) -> None:
        plain = result.to_dict()
        if self._n_scores is not None:
            for answer in plain["results"]:
                answer["scores"] = heapq.nlargest(
                    self._n_scores, answer["scores"], key=lambda each: each["probability"]
                )
        self._write({**_place(line), **self._of_result(plain, result.model)})

    def failure(self, line: Line, error: str) -> None:
        self._write({**_place(line), "query": line.text, "error": error})

    def blank(self, line: Line) -> None:
        self._write({**_place(line), "query": line.text, "blank": True})

    def _of_result(self, plain: JsonObject, model: ModelInfo) -> JsonObject:
        return plain

    def _write(self, value: JsonObject) -> None:
        raise NotImplementedError


class JsonDocument(Objects):
    """One JSON document: the object of the only query, or a list."""

    def __init__(self, n_scores: int | None, *, only_one: bool) -> None:
        super().__init__(n_scores)
        self._only_one, self._n_written = only_one, 0

    def _write(self, value: JsonObject) -> None:
        before = "" if self._only_one else ",\n" if self._n_written else "[\n"
        print(before, json_text(value, indent=2), sep="", end="\n" if self._only_one else "", flush=True)
        self._n_written += 1

    def close(self) -> None:
        if not self._only_one:
            print("\n]" if self._n_written else "[]", flush=True)


class JsonLines(Objects):
    """An object a line, with the hash of the model instead of all that is known of it."""

    def __init__(self, n_scores: int | None, *, header: ModelInfo | None) -> None:
        """header: the model that a first line describes."""
        super().__init__(n_scores)
        if header is not None:
            self._write({"model": asdict(header)})

    def _of_result(self, plain: JsonObject, model: ModelInfo) -> JsonObject:
        del plain["model"]
        return {**plain, "model_sha256": model.sha256}

    def _write(self, value: JsonObject) -> None:
        print(json_text(value), flush=True)


def _place(line: Line) -> JsonObject:
    return {name: value for name, value in (("line", line.number), ("id", line.id)) if value is not None}


def result_table(result: Result, n_top: int, *, width: int = 100) -> Group:
    """One query's answer: a row a prompt with its winner and the next labels, then times and counts.

    n_top: labels of a prompt that are shown, 0: all; width: of the terminal, in columns: no number is cut or parted
    from its name, however few there are.
    """
    title = Text.assemble((printable(result.query) or "(empty query)", "bold"), f"  {result.total_ms:.2f} ms")
    counts = result.counts
    by_stage = Counter(answer.stage for answer in result.results if answer.stage is not None)
    numbers = [
        f"{counted(counts.n_decodes, 'decode')},",
        f"{counts.n_tokens_new} tokens new,",
        f"{counts.n_tokens_cached} cached,",
        counted(counts.n_positions, "position"),
        *(f"{counted(n, 'answer')} by {printable(stage)}" for stage, n in by_stage.items()),
    ]
    first, *more = (f"{stage} {ms:.2f}" for stage, ms in result.stage_ms.items())
    return Group(
        title,
        *_answers(result, n_top, width),
        *(Text(line, style="dim") for line in _lines([f"ms: {first}", *more], width)),
        *(Text(line, style="dim") for line in _lines(numbers, width, gap=" ")),
        Text(),
    )


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
        label_style = f"bold {'yellow' if answer.abstained else ''}".strip()
        line = Text.assemble(
            (_padded(printable(answer.prompt), n_name), "dim"),
            _GAP,
            (_padded(printable(answer.label), n_label), label_style),
            _GAP,
            (f"{bar(answer.probability)}{_GAP}" if is_wide else "", "green"),
            f"{_percent(answer.probability):>{_PERCENT_CELLS}}",
        )
        told = [Text(each, style="dim") for each in _lines(_others(answer, n_top), width - indent)]
        if answer.audit is not None:
            told += _audit(answer, answer.audit, width - indent)
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
    lines = [""]
    for part in parts:
        longer = f"{lines[-1]}{gap}{part}" if lines[-1] else part
        if cell_len(longer) <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(part)
    return lines if parts else []


def _percent(probability: float) -> str:
    return f"{probability:.1%}"


def _others(answer: PromptResult, n_top: int) -> list[str]:
    ranked = sorted(answer.scores, key=lambda score: score.probability, reverse=True)
    # who abstained shows the label that would have been the answer as well
    shown = ranked[0 if answer.abstained else 1 : n_top or None]
    others = [f"{printable(score.label)} {_percent(score.probability)}" for score in shown]
    return [f"abstained: {others[0]}", *others[1:]] if answer.abstained and others else others


def _audit(answer: PromptResult, audit: Audit, width: int) -> list[Text]:
    """The label mass, and what the exact scores find; in yellow where they pick another label."""
    most_probable = answer.most_probable
    picks = {JOINT: audit.joint_label, MEAN: audit.mean_label}
    others = [f"{name} picks {printable(label)}" for name, label in picks.items() if label != most_probable]
    agreeing = " and ".join(name for name, label in picks.items() if label == most_probable)
    verb = "agree" if len(others) == 0 else "agrees"
    parts = [f"audit: label mass {_percent(audit.label_mass)}", *others, *([f"{agreeing} {verb}"] if agreeing else [])]
    lines = _lines([*(f"{part}," for part in parts[:-1]), parts[-1]], width, gap=" ")
    return [Text(line, style="yellow" if audit.changes else "dim") for line in lines]
