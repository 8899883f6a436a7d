"""Answers stored in files: a cache shared by shards, runs and processes, and the answers of an unfinished shard, from
which a stopped run resumes.

A cache finds an answer by the set of prompts, the model, and the text of the query byte for byte: this text is what the
tokenizer gets, and any other text may become other tokens.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import numpy as np

from ..errors import ConfigError, QclsError
from .answers import Answer, AnswerColumns
from .writing import written

KEPT = ".answers"
"""the end of the names of the files beside the output"""
_WAIT_S = 60.0
_N_ASKED = 500  # SQLite has a limit for the parameters of a statement


class AnswerCache:
    """A SQLite file that several processes may use at once. An object belongs to one thread."""

    def __init__(self, path: Path, digest: str, n_labels: int) -> None:
        """digest: of everything but the query that an answer depends on, in hexadecimal digits; n_labels: of all its
        prompts. Raises ConfigError for a file that is no such cache, or cannot be written.
        """
        self._path, self._n_labels = path, n_labels
        self._table = f"answers_{digest}"
        try:
            self._database = sqlite3.connect(path, timeout=_WAIT_S, check_same_thread=False)
            try:
                self._database.execute("PRAGMA journal_mode = WAL")
                self._database.execute("PRAGMA synchronous = NORMAL")
                columns = "query TEXT PRIMARY KEY, answer BLOB NOT NULL"
                self._database.execute(f"CREATE TABLE IF NOT EXISTS {self._table} ({columns}) WITHOUT ROWID")
            except BaseException:
                self.close()
                raise
        except sqlite3.Error as e:
            raise ConfigError(f"`cache` {path}: cannot be used: {e}: name a file of its own, or a new one") from None

    def find(self, queries: Sequence[str]) -> dict[str, Answer]:
        """The stored answers. Raises QclsError."""
        found = {}
        with self._errors():
            for start in range(0, len(queries), _N_ASKED):
                some = queries[start : start + _N_ASKED]
                marks = ",".join("?" * len(some))
                rows = self._database.execute(f"SELECT query, answer FROM {self._table} WHERE query IN ({marks})", some)
                for query, blob in rows:
                    probabilities = np.frombuffer(blob, np.float64, self._n_labels)
                    found[query] = Answer(probabilities, [bool(each) for each in blob[probabilities.nbytes :]])
        return found

    def add(self, answers: Mapping[str, Answer]) -> None:
        """Store answers by their queries; stored answers stay. Raises QclsError if the disk is full."""
        rows = [(query, each.probabilities.tobytes() + bytes(each.abstained)) for query, each in answers.items()]
        with self._errors(), self._database:  # all of them, or none
            self._database.executemany(f"INSERT OR IGNORE INTO {self._table} VALUES (?, ?)", rows)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as e:
            raise QclsError(f"`cache` {self._path}: {e}") from None

    def close(self) -> None:
        """Close the file."""
        self._database.close()


def kept_path(folder: Path, output: str) -> Path:
    """The file with the answers of an unfinished shard, by the name of its output file."""
    return folder / f".{output}{KEPT}"


class KeptAnswers:
    """A file of answers by the places of their queries; those of each decode are added at once."""

    def __init__(self, path: Path, digest: bytes, columns: AnswerColumns) -> None:
        """digest: of all that answers and places depend on; a file with another one is begun anew. Raises QclsError."""
        n_labels, n_prompts = columns.ends[-1], len(columns.prompts)
        self._row = np.dtype(
            [("place", "<i4"), ("probabilities", "<f8", (n_labels,)), ("abstained", "?", (n_prompts,))]
        )
        self._path = path
        with written(path):
            before = path.read_bytes() if path.exists() else b""
            rows = before[len(digest) :] if before.startswith(digest) else b""
            n_rows = len(rows) // self._row.itemsize  # a kill may have cut the last one
            found = np.frombuffer(rows, self._row, n_rows)
            self._file = path.open("ab")
            self._file.truncate(len(digest) + found.nbytes if n_rows else 0)
        self._write(b"" if n_rows else digest)
        self.found = {int(row["place"]): Answer(row["probabilities"], row["abstained"].tolist()) for row in found}
        """the answers that are there"""

    def add(self, answers: Mapping[int, Answer]) -> None:
        """Keep some answers. Raises QclsError where the disk is full."""
        rows = [(place, each.probabilities, each.abstained) for place, each in answers.items()]
        self._write(np.array(rows, self._row).tobytes())

    def _write(self, content: bytes) -> None:
        with written(self._path):
            self._file.write(content)
            self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # what a full disk does not take
            self._file.close()
