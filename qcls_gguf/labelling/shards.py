"""Parts of inputs, each of which becomes one file: row groups of Parquet, blocks of lines of text formats."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq

from ..data.encoding import ByteLines
from ..data.rows import Kind, Row, Rows
from ..errors import ConfigError
from .inputs import Format, Stamp, stamp_of
from .values import ColumnTypes, check_query_type


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Consecutive rows of an input."""

    path: str
    format: Format
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
    keep: tuple[int, ...] | None = None
    """which of its rows are labelled, counted from its first; None: all"""

    @property
    def n_kept(self) -> int:
        """Rows that are labelled."""
        return self.n_rows if self.keep is None else len(self.keep)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedInput:
    """An input with its shards."""

    path: str
    format: Format
    stamp: Stamp
    columns: str
    """the Arrow schema of its columns, serialised, in base64; empty for JSON lines whose objects stay as they are"""
    shards: tuple[Shard, ...]

    @property
    def n_rows(self) -> int:
        return sum(shard.n_rows for shard in self.shards)

    @property
    def schema(self) -> pa.Schema | None:
        """The columns, where they are known."""
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.columns))) if self.columns else None


def plan_input(path: Path, format_: Format, column: str, shard_rows: int, *, typed: bool) -> PlannedInput:
    """The shards of an input, of at most shard_rows rows each; every one of its rows is in one of them.

    typed: whether the values of JSON lines need a type. Text is read through once. Raises ConfigError for a file that
    cannot be read, or has no such column.
    """
    stamp = stamp_of(path)
    try:
        if format_ == "parquet":
            schema, shards = _parquet_shards(path, column, shard_rows)
        else:
            schema, shards = _line_shards(path, format_, column, shard_rows, typed=typed)
    except OSError as e:
        raise ConfigError(f"{path}: cannot be read: {e.strerror or e}") from None
    except pa.ArrowException as e:
        raise ConfigError(f"{path}: is no sound Parquet file: {e}: write it anew, or leave it out") from None
    columns = "" if schema is None else base64.b64encode(schema.serialize().to_pybytes()).decode()
    return PlannedInput(path=str(path), format=format_, stamp=stamp, columns=columns, shards=tuple(shards))


def _parquet_shards(path: Path, column: str, shard_rows: int) -> tuple[pa.Schema, list[Shard]]:
    with pq.ParquetFile(path) as file:
        schema, metadata = file.schema_arrow, file.metadata
        check_query_type(schema, column, path)
        sizes = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    shards, first = [], 0
    for index, size in enumerate(sizes):
        for skip in range(0, size, shard_rows):
            n = min(shard_rows, size - skip)
            shards.append(
                Shard(path=str(path), format="parquet", first_row=first, n_rows=n, row_group=index, skip=skip)
            )
            first += n
    return schema, shards or [Shard(path=str(path), format="parquet", first_row=0, n_rows=0)]


class LineReader:
    """The rows of a text format from a place on, with the place behind each."""

    def __init__(self, path: Path, format_: Format, column: str, *, offset: int = 0, line: int = 1) -> None:
        """Raises ConfigError as Rows does, with the file's name, and OSError."""
        kind: Kind = "csv" if format_ in ("csv", "tsv") else "jsonl" if format_ == "jsonl" else "text"
        header = None
        if kind == "csv" and offset:
            with path.open("rb") as file, closing(ByteLines(file, str(path))) as lines:
                header = next(lines)
        self._file = path.open("rb")
        self._lines = ByteLines(self._file, str(path), offset=offset)
        try:
            self._rows = Rows(self._lines, kind, column, header=header, first_line=line)
        except ConfigError as e:
            self.close()
            raise ConfigError(f"{path}: {e}") from None

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of CSV."""
        return self._rows.header

    @property
    def offset(self) -> int:
        """Bytes of the file up to the end of the last row."""
        return self._lines.offset

    @property
    def line(self) -> int:
        """The number of the line behind it."""
        return self._rows.next_line

    def __iter__(self) -> Iterator[Row]:
        yield from self._rows

    def close(self) -> None:
        """Close the file."""
        self._lines.close()
        self._file.close()


def _line_shards(
    path: Path, format_: Format, column: str, shard_rows: int, *, typed: bool
) -> tuple[pa.Schema | None, list[Shard]]:
    reader = LineReader(path, format_, column)
    try:
        rows = iter(reader)
        types = ColumnTypes(rows, path) if format_ == "jsonl" and typed else None
        counted = rows if types is None else types
        shards, first = [], 0
        offset, line, n = reader.offset, reader.line, 0
        for _ in counted:
            n += 1
            if n == shard_rows:
                shards.append(_line_shard(path, format_, first, n, offset, line))
                first, offset, line, n = first + n, reader.offset, reader.line, 0
        if n or not shards:
            shards.append(_line_shard(path, format_, first, n, offset, line))
        if format_ == "jsonl":
            return (None if types is None else types.schema()), shards
        names = reader.names or (column,)
        return pa.schema([(name, pa.string()) for name in names]), shards
    finally:
        reader.close()


def _line_shard(path: Path, format_: Format, first: int, n: int, offset: int, line: int) -> Shard:
    return Shard(path=str(path), format=format_, first_row=first, n_rows=n, offset=offset, line=line)


def first_rows(planned: list[PlannedInput], n: int) -> list[PlannedInput]:
    """Of all inputs together the first n rows."""
    found = []
    for each in planned:
        shards = []
        for shard in each.shards:
            if n > 0:
                keep = None if shard.n_rows <= n else tuple(range(n))
                shards.append(replace(shard, keep=keep))
                n -= shard.n_rows
        found.append(replace(each, shards=tuple(shards)))
    return found


def sampled_rows(planned: list[PlannedInput], n: int, seed: int) -> list[PlannedInput]:
    """Of all inputs together n rows by chance, in their order; the same for the same seed."""
    total = sum(each.n_rows for each in planned)
    chosen = iter(sorted(Random(seed).sample(range(total), min(n, total))))
    found, before, at = [], 0, next(chosen, None)
    for each in planned:
        shards = []
        for shard in each.shards:
            keep = []
            while at is not None and at < before + shard.n_rows:
                keep.append(at - before)
                at = next(chosen, None)
            before += shard.n_rows
            if keep:
                shards.append(replace(shard, keep=tuple(keep)))
        found.append(replace(each, shards=tuple(shards)))
    return found
