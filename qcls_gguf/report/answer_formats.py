"""How `qcls-gguf run` prints answers, one after the other as they come: a writer for each format."""

from __future__ import annotations

import csv
import heapq
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..config.words import printable
from ..data.queries import Line
from ..score.result import ModelInfo, Result
from .json_text import json_text
from .results import console, result_table

BLANK = "blank line"


class AnswerWriter:
    """Prints one answer after the other to standard output. Subclasses say how."""

    def result(self, line: Line, result: Result) -> None:
        """A query's answer."""
        raise NotImplementedError

    def failure(self, line: Line, error: str) -> None:
        """A query that could not be labelled."""

    def blank(self, line: Line) -> None:
        """A line with nothing on it."""

    def close(self) -> None:
        """Print what stands behind the last answer."""


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
        self._probabilities, self._by_id, self._n_prompts = probabilities, id_column is not None, len(prompts)
        self._print = csv.writer(sys.stdout, delimiter=delimiter, lineterminator="\n").writerow
        columns = [
            column for name in prompts for column in ([name, f"{name}_probability"] if probabilities else [name])
        ]
        self._print([id_column or "line", "query", *columns, "error"])

    def result(self, line: Line, result: Result) -> None:
        cells: list[str] = []
        for answer in result.results:
            cells += [answer.label, f"{answer.probability:.6f}"] if self._probabilities else [answer.label]
        self._row(line, cells, "")

    def failure(self, line: Line, error: str) -> None:
        self._row(line, None, error)

    def blank(self, line: Line) -> None:
        self._row(line, None, BLANK)

    def _row(self, line: Line, cells: Sequence[str] | None, error: str) -> None:
        empty = [""] * (self._n_prompts * (1 + self._probabilities))
        place = line.id if self._by_id else line.number
        self._print(["" if place is None else place, line.text, *(empty if cells is None else cells), error])
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

    def _of_result(self, plain: dict[str, Any], model: ModelInfo) -> dict[str, Any]:
        return plain

    def _write(self, value: dict[str, Any]) -> None:
        raise NotImplementedError


class JsonDocument(Objects):
    """One JSON document: the object of the only query, or a list."""

    def __init__(self, n_scores: int | None, *, only_one: bool) -> None:
        super().__init__(n_scores)
        self._only_one, self._n_written = only_one, 0

    def _write(self, value: dict[str, Any]) -> None:
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

    def _of_result(self, plain: dict[str, Any], model: ModelInfo) -> dict[str, Any]:
        del plain["model"]
        return {**plain, "model_sha256": model.sha256}

    def _write(self, value: dict[str, Any]) -> None:
        print(json_text(value), flush=True)


def _place(line: Line) -> dict[str, Any]:
    return {name: value for name, value in (("line", line.number), ("id", line.id)) if value is not None}
