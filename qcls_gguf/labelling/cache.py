"""Answers kept in a file between shards, runs and processes.

An answer is found by the set of prompts, the model, and the text of the query byte for byte: this text is what the
tokenizer gets, and any other text may become other tokens.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ..errors import ConfigError, QclsError
from .answers import Answer

_WAIT_S = 60.0
_N_ASKED = 500  # SQLite has a limit for the parameters of a statement


class AnswerCache:
    """A SQLite file that several processes may use at once. Belongs to one thread."""

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
        """The answers that are there. Raises QclsError."""
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
        """Keep answers by their queries; those that are there stay. Raises QclsError where the disk is full."""
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
