"""The rows of a shard: read with their distinct queries and the reasons why rows have none, and written with labels."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..data.lines import is_text, shown_bytes
from ..data.rows import NULL, QUERY, Format, Reading, open_rows, placed
from ..errors import ConfigError, QclsError, prefixed
from ..system.folders import whole_file
from .inputs import Input, Shard, check_names, json_of, members_in, plain, texts_of

DIGITS = 6
"""of a probability that is written as text"""
BLANK = "the query is blank"
_NOT_UTF8 = "the query is not valid UTF-8"
_BUFFER_BYTES = 1 << 20
"""of a column of Parquet that are read at once"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queries:
    """The distinct queries of some rows."""

    texts: Sequence[str]
    """in the order in which they first come"""
    index: npt.NDArray[np.int32]
    """(n_rows,) which of them a row has; -1: none"""
    reasons: dict[int, str]
    """of rows without a query"""
    unit: str
    """what rows are called in messages: `row`, or in text formats `line`"""
    numbers: Sequence[int]
    """(n_rows,) and their numbers there"""


def distinct_queries(
    texts: Sequence[str | None], unit: str, numbers: Sequence[int], problems: Mapping[int, str] | None = None
) -> Queries:
    """The distinct queries of rows with these texts; unit, numbers: see Queries.

    problems: the known reasons why rows have no query.
    """
    known: dict[str, int] = {}
    index, reasons = np.full(len(texts), -1, np.int32), {}
    for row, text in enumerate(texts):
        problem = problems.get(row) if problems else None
        if problem is None and text is not None and text.strip() and is_text(text):
            index[row] = known.setdefault(text, len(known))
        else:
            why = NULL if text is None else _NOT_UTF8 if text.strip() else BLANK
            reasons[row] = placed(f"{unit} {numbers[row]}", problem or why)
    return Queries(texts=list(known), index=index, reasons=reasons, unit=unit, numbers=numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The rows of a shard: a table, or objects of JSON lines as they were written."""

    queries: Queries
    table: pa.Table | None = None
    lines: Sequence[str] = ()
    """the members of its objects, without braces"""


def _table_of(rows: Sequence[Sequence[object]], names: Sequence[str]) -> pa.Table:
    """Values row by row as a table of texts; other values are in JSON."""
    texts = [[plain(value) if isinstance(value, str | None) else json_of(value) for value in row] for row in rows]
    columns = zip(*texts, strict=True) if texts else [()] * len(names)
    return pa.table([pa.array(values, pa.string()) for values in columns], names=names)


def rows_of(table: pa.Table) -> Iterator[Sequence[Any]]:
    """The values of a table row by row."""
    for batch in table.to_batches(max_chunksize=1024):
        columns: list[Sequence[Any]] = []
        for column in batch.columns:
            try:
                columns.append(column.to_pylist())
            except UnicodeDecodeError:
                columns.append(texts_of(column))
        yield from zip(*columns, strict=True) if columns else ([] for _ in range(batch.num_rows))


def with_columns(table: pa.Table, added: pa.Table) -> pa.Table:
    """A table with the columns of another one of as many rows after its own."""
    schema = pa.schema([*table.schema, *added.schema], table.schema.metadata)
    return pa.Table.from_arrays([*table.columns, *added.columns], schema=schema)


def read_block(input_: Input, shard: Shard, reading: Reading, added: Sequence[str]) -> Block:
    """Read the rows of a shard that are labelled.

    added: columns that the output gets. Raises ConfigError for a file that cannot be read any more, or already has one
    of these columns.
    """
    is_parquet = input_.format == "parquet"
    try:
        if is_parquet:
            block = _parquet_block(input_, shard, reading.query or QUERY)
        else:
            block = _text_block(input_, shard, reading, added)
    except (OSError, pa.ArrowException) as e:  # pyarrow has both for a damaged page
        what = " ".join(str(getattr(e, "strerror", None) or e).split())
        group = f"row group {shard.row_group} " if is_parquet else ""
        raise ConfigError(f"{input_.path}: {group}cannot be read: {what}: write it anew, or leave it out") from None
    if len(block.queries.index) != shard.n_rows:
        raise ConfigError(f"{input_.path}: has fewer rows than when its shards were planned: it was changed meanwhile")
    return block


def _text_block(input_: Input, shard: Shard, reading: Reading, added: Sequence[str]) -> Block:
    with open_rows(input_.path, input_.path, reading, at=(shard.offset, shard.line)) as reader:
        rows = list(islice(reader, shard.n_rows))
        n = len(reader.header)
    problems = {place: row.problem for place, row in enumerate(rows) if row.problem}
    queries = distinct_queries([row.text for row in rows], "line", [row.number or 0 for row in rows], problems)
    given = list[Sequence[object]]()
    if input_.format == "text":
        given = [(row.text,) for row in rows]
    elif input_.format != "jsonl":
        fields = [list(map(shown_bytes, row.fields)) if row.problem else row.fields for row in rows]
        given = [(*of_row, *[""] * n)[:n] for of_row in fields]
    objects = [members_in(row) for row in rows] if input_.format == "jsonl" else []
    if input_.columns:
        given = given or [list(map(values.get, input_.columns)) for values in objects]
        return Block(queries=queries, table=_table_of(given, list(input_.columns)))
    for row, values in zip(rows, objects, strict=True):
        if not values.keys().isdisjoint(added):
            with prefixed(f"{input_.path}, line {row.number}"):
                check_names(added, list(values))
    # As they were written: numbers keep their digits, and keys their order.
    lines = ["" if row.values is None else row.line.strip()[1:-1].strip() for row in rows]
    return Block(queries=queries, lines=lines)


def _parquet_block(input_: Input, shard: Shard, query_column: str) -> Block:
    # Read bit by bit: else the columns of a whole row group are in memory, which may be all of a large file.
    with pq.ParquetFile(input_.path, pre_buffer=False, buffer_size=_BUFFER_BYTES) as file:
        found, at, end = [], 0, shard.skip + shard.n_rows
        groups = [shard.row_group] if shard.n_rows else []
        for batch in file.iter_batches(batch_size=8192, row_groups=groups, use_threads=False):
            low, high = max(shard.skip - at, 0), min(end - at, batch.num_rows)
            if low < high:
                found.append(batch.slice(low, high - low))
            at += batch.num_rows
            if at >= end:
                break
        table = pa.Table.from_batches(found, file.schema_arrow)
    numbers = range(shard.first_row + 1, shard.first_row + shard.n_rows + 1)
    queries = distinct_queries(texts_of(column_at(table, query_column)), "row", numbers)
    return Block(queries=queries, table=table)


def column_at(table: pa.Table | pa.RecordBatch, name: str) -> pa.Array | pa.ChunkedArray:
    """A column, or for `a.b` the field b of the column a."""
    if name in table.schema.names:
        return table.column(name)
    first, *names = name.split(".")
    column = table.column(first)
    for name in names:
        column = pc.struct_field(column, name)
    return column


def write_block(path: Path, block: Block, added: pa.Table, format_: Format, *, header: bool) -> int:
    """Write a shard's rows with their new columns to its file; returns the size in bytes.

    header: whether CSV begins with the names of its columns. Raises QclsError.
    """
    table = added if block.table is None else with_columns(block.table, added)
    with output_file(path) as file:
        if format_ == "parquet":
            pq.write_table(table, file, compression="zstd")
            return file.tell()
        text = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="")
        if format_ == "jsonl":
            keys = list(map(json_of, table.column_names))
            for before, row in zip(block.lines or [""] * len(table), rows_of(table), strict=True):
                members = [f"{key}: {json_of(value)}" for key, value in zip(keys, row, strict=True)]
                text.write(f"{{{', '.join([before, *members] if before else members)}}}\n")
        else:
            writer = csv.writer(text, delimiter="\t" if format_ == "tsv" else ",", lineterminator="\n")
            if header:
                writer.writerow(table.column_names)
            for row in rows_of(table):
                writer.writerow(value if isinstance(value, str) else _cell(value) for value in row)
        text.detach()
        return file.tell()


def _cell(value: object) -> str:
    """A value as a CSV field: nothing for null, JSON for lists and objects."""
    found = plain(value)
    return "" if found is None else found if isinstance(found, str) else json_of(found)


@contextmanager
def written(path: Path) -> Iterator[None]:
    """A context that writes a file. Raises QclsError where that fails."""
    try:
        yield
    except OSError as e:
        what = "finished files stay; run the command again when there is room"
        raise QclsError(f"{path}: could not be written: {e.strerror or e}: {what}") from None


@contextmanager
def output_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that gets its name when it is complete and on the disk. Raises QclsError if it cannot be written."""
    with written(path), whole_file(path, mode=0o666, on_disk=True) as file:
        yield file
