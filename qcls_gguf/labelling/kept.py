"""The answers of a shard that is not whole yet, in a file beside the output: a stopped run goes on after them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

import numpy as np

from .answers import Answer, AnswerColumns
from .writing import written

KEPT = ".answers"
"""the end of the names of these files"""


def kept_path(folder: Path, output: str) -> Path:
    """Where the answers of the shard are kept that becomes this output file."""
    return folder / f".{output}{KEPT}"


class KeptAnswers:
    """A file of answers by the places of their queries, to which each decode's are added at once."""

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
