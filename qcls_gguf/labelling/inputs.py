"""The input files, their shards, and checks that the files have not changed."""

from __future__ import annotations

import base64
import glob
import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ..data.encoding import ByteLines
from ..data.rows import FORMATS, Format, Rows, format_of, why_refused
from ..errors import ConfigError, prefixed, readable
from ..model.identity import Stamp, digest_of_ends, stamps_of
from ..report.record import Record
from .columns import ColumnTypes, check_query_type, members_in


class Shard(Record):
    """Consecutive rows of an input, which become one output file."""

    first_row: int
    """of the input, from 0"""
    n_rows: int
    row_group: int = 0
    """of Parquet"""
    skip: int = 0
    """rows of the row group before it"""
    offset: int = 0
    """of text formats: bytes of the file before it"""
    line: int = 1
    """and the number of its first line"""


class Input(Record):
    """A file with its shards."""

    path: str
    format: Format
    stamp: Stamp
    """when its shards were found"""
    digest: str
    """sha256 of its first and its last 64 KiB: it stays where a file is only copied or touched"""
    columns: str
    """the Arrow schema of its columns, serialised, in base64; empty for JSON lines whose objects stay as they are"""
    shards: tuple[Shard, ...]
    name: str = ""
    """what the names of its output files begin with"""

    @property
    def column_types(self) -> pa.Schema | None:
        """The columns, where they are known."""
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.columns))) if self.columns else None

    def refreshed(self) -> Input | None:
        """The input with the file's current stamp; None if its content has changed."""
        with readable(str(self.path)):
            (stamp,) = stamps_of([Path(self.path)])
            if stamp != self.stamp and (stamp[1], digest_of_ends(Path(self.path))) != (self.stamp[1], self.digest):
                return None
        return self.model_copy(update={"stamp": stamp})

    def check_unchanged(self) -> None:
        """Raise ConfigError if the file was changed since its shards were found."""
        with readable(str(self.path)):
            (stamp,) = stamps_of([Path(self.path)])
        if stamp[1:] != self.stamp[1:]:  # machines may have the file under different paths
            raise ConfigError(
                f"{self.path}: was changed while it was labelled ({self.stamp[1]} bytes before, {stamp[1]} now): the "
                "finished files stay; run the command again, which says what can be done"
            )


def find_inputs(given: Sequence[str]) -> list[Path]:
    """The files that names, patterns and folders denote, each once, sorted by name within a pattern or folder.

    A folder stands for the files in it and below with a known ending, except hidden ones. Raises ConfigError for a name
    or pattern without a file, and for files that cannot be read.
    """
    found: dict[str, Path] = {}
    for name in given:
        for path in _files_of(name):
            if what := why_refused(path, ".parquet"):
                raise ConfigError(f"{path}: {what}")
            if not path.is_file():
                raise ConfigError(f"{path}: is no plain file: inputs are read more than once")
            found.setdefault(os.path.realpath(path), path)
    return list(found.values())


def _files_of(name: str) -> list[Path]:
    path = Path(name)
    if path.is_dir():
        inside = (each for each in path.rglob("*") if each.suffix.lower() in FORMATS and each.is_file())
        shown = (each for each in inside if not any(part[0] == "." for part in each.relative_to(path).parts))
        files, why = sorted(shown), f"the folder has no file that ends in {', '.join(FORMATS)}"
    else:
        names = [name] if path.exists() else filter(os.path.isfile, glob.glob(name, recursive=True))
        files, why = sorted(map(Path, names)), "no such file"
    if not files:
        raise ConfigError(f"{name}: {why}")
    return files


def read_input(path: Path, query_column: str, shard_rows: int, *, typed: bool) -> Input:
    """An input with its shards of at most shard_rows rows; every one of its rows is in one of them.

    typed: whether the values of JSON lines need a type. Text is read through once. Raises ConfigError for a file that
    cannot be read, or has no such column.
    """
    format_ = format_of(path)
    with readable(str(path)):
        (stamp,), digest = stamps_of([path]), digest_of_ends(path)
        try:
            if format_ == "parquet":
                schema, shards = _parquet_shards(path, query_column, shard_rows)
            else:
                schema, shards = _line_shards(path, query_column, shard_rows, ColumnTypes() if typed else None)
        except pa.ArrowException as e:
            raise ConfigError(f"{path}: is no sound Parquet file: {e}: write it anew, or leave it out") from None
    columns = "" if schema is None else base64.b64encode(schema.serialize().to_pybytes()).decode()
    return Input(path=str(path), format=format_, stamp=stamp, digest=digest, columns=columns, shards=tuple(shards))


def _parquet_shards(path: Path, query_column: str, shard_rows: int) -> tuple[pa.Schema, list[Shard]]:
    with pq.ParquetFile(path) as file:
        schema, metadata = file.schema_arrow, file.metadata
        check_query_type(schema, query_column, path)
        sizes = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    shards = []
    for group, (first, size) in enumerate(zip(accumulate(sizes, initial=0), sizes, strict=False)):
        shards += [
            Shard(first_row=first + skip, n_rows=min(shard_rows, size - skip), row_group=group, skip=skip)
            for skip in range(0, size, shard_rows)
        ]
    return schema, shards or [Shard(first_row=0, n_rows=0)]


def _line_shards(
    path: Path, query_column: str, shard_rows: int, types: ColumnTypes | None
) -> tuple[pa.Schema | None, list[Shard]]:
    """types: of the keys of JSON lines, to be found; None: objects stay as they are."""
    shards = []
    with open_rows(path, query_column) as (rows, lines):
        first, offset, line, n = 0, lines.offset, rows.next_line, 0
        for row in rows:
            n += 1
            if types is not None and row.values is not None:
                types.add(members_in(row))
            if n == shard_rows:
                shards.append(Shard(first_row=first, n_rows=n, offset=offset, line=line))
                first, offset, line, n = first + n, lines.offset, rows.next_line, 0
        if n or not shards:
            shards.append(Shard(first_row=first, n_rows=n, offset=offset, line=line))
        names = rows.header or (query_column,)
    if format_of(path) == "jsonl":
        return (None if types is None else types.schema()), shards
    return pa.schema([(name, pa.string()) for name in names]), shards


@contextmanager
def open_rows(path: Path, query_column: str, *, offset: int = 0, line: int = 1) -> Iterator[tuple[Rows, ByteLines]]:
    """The rows of a text format, and the lines whose offset is that of the end of the last row.

    offset, line: of a shard in the file. Raises ConfigError as Rows does, with the file's name, and OSError.
    """
    format_, header = format_of(path), None
    if format_ in ("csv", "tsv") and offset:
        with path.open("rb") as file, closing(ByteLines(file, str(path))) as lines:
            header = next(lines)
    with path.open("rb") as file, closing(ByteLines(file, str(path), offset=offset)) as lines:
        with prefixed(str(path)):
            rows = Rows(lines, format_, query_column, header=header, first_line=line)
        yield rows, lines


def first_rows(inputs: Sequence[Input], limit: int) -> list[Input]:
    """The inputs with the first rows of all together."""
    found = []
    for each in inputs:
        shards = []
        for shard in each.shards:
            n = min(shard.n_rows, limit)
            limit -= n
            if n or not shard.n_rows:
                shards.append(shard.model_copy(update={"n_rows": n}))
        found.append(each.model_copy(update={"shards": tuple(shards)}))
    return found
