"""Which files are labelled: their names, formats, and what tells that one has changed."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..config.words import shown
from ..data.rows import why_no_rows
from ..errors import ConfigError

Format = Literal["parquet", "csv", "tsv", "jsonl", "text"]
_SUFFIXES: dict[str, Format] = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".txt": "text",
}
_BLOCK_BYTES = 1 << 16


def format_of(path: Path) -> Format:
    """By the end of the name, of files that `find_inputs` does not refuse: with any other they have a query a line."""
    return _SUFFIXES.get(path.suffix.lower(), "text")


def find_inputs(given: Sequence[str]) -> list[Path]:
    """The files that names, patterns and folders stand for, each once, those of a pattern or folder by their names.

    Of a folder and those inside it the files with a known ending count, but for hidden ones. Raises ConfigError for a
    name or pattern that stands for nothing, and for what cannot be read.
    """
    found: dict[str, Path] = {}
    for name in given:
        paths = _files_of(name)
        for path in paths:
            if what := why_no_rows(path.suffix):
                raise ConfigError(f"{path}: {what}")
            if not path.is_file():
                raise ConfigError(f"{path}: is no plain file: inputs are read more than once")
            if not os.access(path, os.R_OK):
                raise ConfigError(f"{path}: cannot be read: permission denied")
            found.setdefault(os.path.realpath(path), path)
    return list(found.values())


def _files_of(name: str) -> list[Path]:
    path = Path(name)
    if path.is_dir():
        files = sorted(
            each
            for each in path.rglob("*")
            if each.suffix.lower() in _SUFFIXES
            and each.is_file()
            and not any(part.startswith(".") for part in each.relative_to(path).parts)
        )
        if not files:
            raise ConfigError(f"{name}: the folder has no file that ends in {', '.join(_SUFFIXES)}")
        return files
    if path.exists():
        return [path]
    if glob.has_magic(name):
        files = sorted(Path(each) for each in glob.glob(name, recursive=True) if os.path.isfile(each))
        if files:
            return files
        raise ConfigError(f"{name}: no file has such a name")
    raise ConfigError(f"{name}: no such file")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """What tells that a file is the one that was looked at before."""

    n_bytes: int
    mtime_ns: int
    digest: str
    """sha256 of its first and its last 64 KiB"""

    def is_same(self, other: Stamp) -> bool:
        """Whether they are of one content; a file that was copied or touched has another time."""
        return (self.n_bytes, self.digest) == (other.n_bytes, other.digest)


def stamp_of(path: Path) -> Stamp:
    """The stamp of a file at this moment. Raises ConfigError where it cannot be read."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            digest = hashlib.sha256(file.read(_BLOCK_BYTES))
            file.seek(max(0, status.st_size - _BLOCK_BYTES))
            digest.update(file.read(_BLOCK_BYTES))
    except OSError as e:
        raise ConfigError(f"{path}: cannot be read: {e.strerror}") from None
    return Stamp(n_bytes=status.st_size, mtime_ns=status.st_mtime_ns, digest=digest.hexdigest())


def check_unchanged(path: Path, stamp: Stamp) -> None:
    """Raise ConfigError for a file that has another size or time than when its shards were planned."""
    try:
        status = path.stat()
    except OSError as e:
        raise ConfigError(f"{path}: cannot be read any more: {e.strerror}") from None
    if (status.st_size, status.st_mtime_ns) != (stamp.n_bytes, stamp.mtime_ns):
        raise ConfigError(
            f"{path}: was changed while it was labelled ({stamp.n_bytes} bytes before, {status.st_size} now): the "
            "files that are there already stay; run the command again, and it says what can be done"
        )


def check_names(names: Sequence[str], taken: Sequence[str], path: Path | str) -> None:
    """Raise ConfigError where a column that is to be added is in the input already."""
    twice = [name for name in names if name in taken]
    if twice:
        raise ConfigError(
            f"{path}: has a column {shown(twice[0])} already, as the labels' is to be named: choose a `prefix` for "
            "these, or rename it"
        )
