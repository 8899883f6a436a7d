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
_TABLES = """
CREATE TABLE IF NOT EXISTS sets (number INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS answers (
    set_number INTEGER NOT NULL, query TEXT NOT NULL, answer BLOB NOT NULL, PRIMARY KEY (set_number, query)
) WITHOUT ROWID;
"""


class AnswerCache:
    """A SQLite file that several processes may use at once. Belongs to one thread."""

    def __init__(self, path: Path, digest: str, n_labels: int) -> None:
        """digest: of everything but the query that an answer depends on; n_labels: of all its prompts.

        Raises ConfigError for a file that is no such cache, or cannot be written.
        """
        self._path = path
        self._n_labels = n_labels
        try:
            self._set = self._open(digest)
        except sqlite3.Error as e:
            raise ConfigError(f"`cache` {path}: cannot be used: {e}: name a file of its own, or a new one") from None

    def _open(self, digest: str) -> int:
        """Open the file; returns the number of the set in it."""
        self._database = sqlite3.connect(self._path, timeout=_WAIT_S, check_same_thread=False)
        try:
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._database.executescript(_TABLES)
            with self._database:
                self._database.execute("INSERT OR IGNORE INTO sets (digest) VALUES (?)", (digest,))
            return int(self._database.execute("SELECT number FROM sets WHERE digest = ?", (digest,)).fetchone()[0])
        except BaseException:
            self._database.close()
            raise

    def find(self, queries: Sequence[str]) -> dict[str, Answer]:
        """The answers that are there. Raises QclsError."""
        found = {}
        with self._errors():
            for start in range(0, len(queries), _N_ASKED):
                some = queries[start : start + _N_ASKED]
                marks = ",".join("?" * len(some))
                for query, blob in self._database.execute(
                    f"SELECT query, answer FROM answers WHERE set_number = ? AND query IN ({marks})", (self._set, *some)
                ):
                    probabilities = np.frombuffer(blob, np.float64, self._n_labels)
                    found[query] = Answer(probabilities, [bool(each) for each in blob[probabilities.nbytes :]])
        return found

    def add(self, answers: Mapping[str, Answer]) -> None:
        """Keep answers by their queries; those that are there stay. Raises QclsError where the disk is full."""
        rows = [
            (self._set, query, answer.probabilities.tobytes() + bytes(answer.abstained))
            for query, answer in answers.items()
        ]
        with self._errors(), self._database:  # all of them, or none
            self._database.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?, ?)", rows)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as e:
            raise QclsError(f"`cache` {self._path}: {e}") from None

    def close(self) -> None:
        """Close the file."""
        self._database.close()
