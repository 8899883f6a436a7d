"""Answers of distinct queries, the columns of the output that they fill, and the files that store them.

A cache of the user's is shared by shards, runs and processes; without it, one of an unfinished shard stands beside the
output, so that a stopped run resumes from it. A cache finds an answer by the set of prompts, the model, and the text of
the query byte for byte: this text is what the tokenizer gets, and any other text may become other tokens.
"""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..config.prompt import PromptConfig
from ..errors import ConfigError, QclsError
from ..score.result import Result
from ..statistics import FloatArray
from ..system.lifetimes import Closing
from .blocks import UNWRITTEN, Queries, distinct_queries

KEPT = ".answers"
"""in the names of the files of a cache beside the output, before what SQLite adds"""
_WAIT_S = 60.0
_N_ASKED = 500  # SQLite has a limit for the parameters of a statement


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerColumns:
    """The columns that the output gets."""

    prompts: tuple[PromptConfig, ...]
    """the names of the prompts"""
    prefix: str = ""
    """before their names"""
    scores: bool = False
    """also every label's probability"""

    @property
    def ends(self) -> list[int]:
        """Where the labels of the prompts end in a list of the labels of all."""
        return list(accumulate(len(prompt.labels) for prompt in self.prompts))

    def schema(self) -> pa.Schema:
        """The columns and their types."""
        return Answers(self, 0).table(distinct_queries([], "row", [])).schema


@dataclass(frozen=True, slots=True)
class Answer:
    """What is kept of a result."""

    probabilities: FloatArray
    """(n_labels,) of every label, prompt by prompt"""
    abstained: Sequence[bool]
    """prompt by prompt"""


def answer_of(result: Result) -> Answer:
    """What is kept of a result."""
    probabilities = [score.probability for answer in result.results for score in answer.scores]
    return Answer(np.array(probabilities), [answer.abstained for answer in result.results])


class Answers:
    """The answers to distinct queries, filled one by one."""

    def __init__(self, columns: AnswerColumns, n: int) -> None:
        self.columns = columns
        shape = n, len(columns.prompts)
        self.label = np.full(shape, -1, np.int32)
        """(n, n_prompts) by number, the fallback after all labels; -1: no answer"""
        self.probability = np.full(shape, np.nan)
        """(n, n_prompts) of the most probable label"""
        self.scores = np.full((n, columns.ends[-1] if columns.scores else 0), np.nan)
        """(n, n_labels) every label's probability, prompt by prompt; (n, 0) where no column needs them"""
        self.is_cut = np.zeros(n, bool)
        """(n,) whether a part of the query was left out, because it was too long"""
        self.reasons: dict[int, str] = {}
        """why a query has no answer"""
        self.n_found = 0
        """of those with an answer, the number of which it was known before"""

    def put(self, place: int, answer: Answer | str, *, is_cut: bool = False) -> None:
        """Keep the answer to a query or to a part of it (is_cut), or the reason why it has none."""
        self.is_cut[place] = is_cut
        if isinstance(answer, str):
            self.reasons[place] = answer
            return
        for number, own in enumerate(np.split(answer.probabilities, self.columns.ends[:-1])):
            best = int(own.argmax())  # the first of equally probable ones, as in a Result
            self.label[place, number] = len(own) if answer.abstained[number] else best
            self.probability[place, number] = own[best]
        if self.columns.scores:
            self.scores[place] = answer.probabilities

    def failures(self, queries: Queries) -> dict[int, str]:
        """The reasons of rows whose query has no answer."""
        rows = np.flatnonzero(np.isin(queries.index, list(self.reasons))).tolist() if self.reasons else []
        return {row: f"{queries.unit} {queries.numbers[row]}: {self.reasons[int(queries.index[row])]}" for row in rows}

    def table(self, queries: Queries, digits: int | None = None) -> pa.Table:
        """The columns that the rows get; digits: of probabilities after the point, None: all."""
        index = queries.index
        names, arrays = zip(*self._columns(digits), strict=True)
        if queries.texts:
            place = pa.array(np.maximum(index, 0), mask=index < 0)
            arrays = tuple(array.take(place) for array in arrays)
        else:  # there is nothing to take from
            arrays = tuple(pa.nulls(len(index), array.type) for array in arrays)
        reasons = queries.reasons | self.failures(queries)
        errors = pa.array([reasons.get(row) for row in range(len(index))], pa.string())
        return pa.Table.from_arrays([*arrays, errors], [*names, f"{self.columns.prefix}error"])

    def _columns(self, digits: int | None) -> Iterator[tuple[str, pa.Array]]:
        """Of the distinct queries, without the reasons."""
        probability, scores, columns = self.probability, self.scores, self.columns
        if digits is not None:
            probability, scores = probability.round(digits), scores.round(digits)
        own_scores = np.split(scores, columns.ends[:-1], axis=1)
        for number, (prompt, own) in enumerate(zip(columns.prompts, own_scores, strict=True)):
            name = f"{columns.prefix}{prompt.name}"
            names, label = pa.array([*prompt.labels, prompt.fallback or ""], pa.string()), self.label[:, number]
            none = pa.array(label < 0)
            yield name, names.take(pa.array(label, mask=label < 0))
            yield f"{name}_probability", pc.if_else(none, None, pa.array(probability[:, number]))
            if columns.scores:
                found = pa.StructArray.from_arrays(list(map(pa.array, own.T)), names=list(prompt.labels))
                yield f"{name}_scores", pc.if_else(none, pa.scalar(None, found.type), found)


class AnswerCache(Closing):
    """A SQLite file that several processes may use at once. An object belongs to one thread."""

    def __init__(self, path: Path, digest: str, n_labels: int, *, is_shared: bool) -> None:
        """digest: of everything but the query that an answer depends on, in hexadecimal digits; n_labels: of all its
        prompts; is_shared: with other processes. Raises ConfigError for a file that is no such cache, or cannot be
        written, QclsError if the disk is full.
        """
        self._path, self._n_labels = path, n_labels
        self._table = f"answers_{digest}"
        self._database = sqlite3.connect(":memory:")
        with self._errors():
            self._database = sqlite3.connect(path, timeout=_WAIT_S)
            self._database.execute(f"PRAGMA locking_mode = {'NORMAL' if is_shared else 'EXCLUSIVE'}")
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")
            columns = "query TEXT PRIMARY KEY, answer BLOB NOT NULL"
            self._database.execute(f"CREATE TABLE IF NOT EXISTS {self._table} ({columns}) WITHOUT ROWID")

    def find(self, queries: Sequence[str]) -> dict[str, Answer]:
        """The stored answers. Raises as above."""
        found = {}
        with self._errors():
            for start in range(0, len(queries), _N_ASKED):
                some = queries[start : start + _N_ASKED]
                marks = ",".join("?" * len(some))
                rows = self._database.execute(f"SELECT query, answer FROM {self._table} WHERE query IN ({marks})", some)
                for query, blob in rows:
                    probabilities = np.frombuffer(blob, np.float64, self._n_labels)
                    found[query] = Answer(probabilities, list(map(bool, blob[probabilities.nbytes :])))
        return found

    def add(self, answers: Mapping[str, Answer]) -> None:
        """Store answers by their queries; stored answers stay. Raises as above."""
        rows = [(query, answer.probabilities.tobytes() + bytes(answer.abstained)) for query, answer in answers.items()]
        with self._errors(), self._database:  # all of them, or none
            self._database.executemany(f"INSERT OR IGNORE INTO {self._table} VALUES (?, ?)", rows)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as e:
            self.close()
            if e.sqlite_errorcode == sqlite3.SQLITE_FULL:
                raise QclsError(f"{self._path}: {UNWRITTEN.format(e)}") from None
            raise ConfigError(f"`cache` {self._path}: cannot be used: {e}: remove it, or name another") from None

    def close(self) -> None:
        """Close the file."""
        self._database.close()
