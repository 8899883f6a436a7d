"""The rows of a shard: what they hold, their distinct queries, and which have none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..data.encoding import is_text
from ..data.rows import NULL, Row, shown_bytes
from ..errors import ConfigError
from .inputs import check_names
from .shards import LineReader, Shard
from .values import cell, column_of, json_value

Int32Array = npt.NDArray[np.int32]
BLANK = "the query is blank"
_BUFFER_BYTES = 1 << 20
"""of a column of Parquet that are read at once"""
_NOT_UTF8 = "the query is not valid UTF-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Queries:
    """The distinct queries of some rows."""

    texts: Sequence[str]
    """in the order in which they first come"""
    index: Int32Array
    """(n_rows,) which of them a row has; -1: none"""
    reasons: dict[int, str]
    """row by row why it has none"""
    unit: str
    """what rows are called in messages: `row`, or in text formats `line`"""
    numbers: Sequence[int]
    """(n_rows,) and their numbers there"""

    def name(self, row: int) -> str:
        """What messages call a row."""
        return f"{self.unit} {self.numbers[row]}"


def queries_of_column(column: pa.ChunkedArray | pa.Array, numbers: Sequence[int]) -> Queries:
    """The distinct queries of a column of text; numbers: of its rows, as reasons have them."""
    chunked = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
    if pa.types.is_dictionary(chunked.type):
        chunked = chunked.cast(chunked.type.value_type)
    # As bytes, since a file may have text that is no UTF-8, which only its own row is to suffer from.
    if chunked.num_chunks == 0:
        encoded = pc.dictionary_encode(pa.array([], pa.large_binary()))
    else:
        encoded = pc.dictionary_encode(chunked.cast(pa.large_binary())).combine_chunks()
    code = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int32)
    texts: list[str] = []
    number = np.full(len(encoded.dictionary) + 1, -1, np.int32)
    refused: dict[int, str] = {-1: NULL}
    for place, value in enumerate(encoded.dictionary.to_pylist()):
        try:
            text = value.decode()
        except UnicodeDecodeError as e:
            refused[place] = f"{_NOT_UTF8} at byte {e.start}"
            continue
        if not text.strip():
            refused[place] = BLANK
            continue
        number[place] = len(texts)
        texts.append(text)
    index = number[code]
    bad = np.flatnonzero(index < 0).tolist()
    return Queries(
        texts=texts,
        index=index,
        reasons={row: f"row {numbers[row]}: {refused[int(code[row])]}" for row in bad},
        unit="row",
        numbers=numbers,
    )


def _queries_of_rows(rows: Sequence[Row]) -> Queries:
    known: dict[str, int] = {}
    index = np.full(len(rows), -1, np.int32)
    reasons = {}
    for place, row in enumerate(rows):
        if row.error:
            reasons[place] = row.error
        elif row.is_blank:
            reasons[place] = f"line {row.number}: {BLANK}"
        elif not is_text(row.query):
            reasons[place] = f"line {row.number}: {_NOT_UTF8}"
        else:
            index[place] = known.setdefault(row.query, len(known))
    numbers = [row.number for row in rows]
    return Queries(texts=list(known), index=index, reasons=reasons, unit="line", numbers=numbers)


class Block:
    """The rows of a shard, as their output needs them. Subclasses say how they are kept."""

    queries: Queries

    def names(self) -> Sequence[str]:
        """Of the input's columns."""
        raise NotImplementedError

    def table(self) -> pa.Table:
        """The input's columns."""
        raise NotImplementedError

    def cells(self) -> Iterator[Sequence[str]]:
        """The same row by row, as text."""
        raise NotImplementedError

    def objects(self) -> Iterator[str]:
        """The same row by row, as the JSON of an object's members, without braces."""
        raise NotImplementedError


class TableBlock(Block):
    """Columns of Arrow."""

    def __init__(self, table: pa.Table, queries: Queries) -> None:
        self._table, self.queries = table, queries

    def names(self) -> Sequence[str]:
        return self._table.column_names  # type: ignore[no-any-return]

    def table(self) -> pa.Table:
        return self._table

    def cells(self) -> Iterator[Sequence[str]]:
        for row in self._rows():
            yield [cell(value) for value in row]

    def objects(self) -> Iterator[str]:
        names = [json_value(name) for name in self._table.column_names]
        for row in self._rows():
            yield ", ".join(f"{name}: {json_value(value)}" for name, value in zip(names, row, strict=True))

    def _rows(self) -> Iterator[Sequence[Any]]:
        for batch in self._table.to_batches(max_chunksize=1024):
            columns = [_values(column) for column in batch.columns]
            yield from zip(*columns, strict=True) if columns else ([] for _ in range(batch.num_rows))


def _values(column: pa.Array) -> Sequence[Any]:
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError:
        return [None if each is None else each.decode(errors="backslashreplace")
                for each in column.cast(pa.large_binary()).to_pylist()]  # fmt: skip


class FieldsBlock(Block):
    """Rows of CSV, or lines of text, which are the only column."""

    def __init__(self, rows: Sequence[Row], names: Sequence[str], *, is_csv: bool) -> None:
        self._names = names
        self.queries = _queries_of_rows(rows)
        n = len(names)
        self._fields = [((*row.fields, *[""] * n)[:n] if is_csv else (row.query,)) for row in rows]

    def names(self) -> Sequence[str]:
        return self._names

    def table(self) -> pa.Table:
        columns = zip(*self._fields, strict=True) if self._fields else ([] for _ in self._names)
        texts = [[each if is_text(each) else shown_bytes(each) for each in column] for column in columns]
        return pa.table([pa.array(column, pa.string()) for column in texts], names=list(self._names))

    def cells(self) -> Iterator[Sequence[str]]:
        yield from self._fields

    def objects(self) -> Iterator[str]:
        names = [json_value(name) for name in self._names]
        for fields in self._fields:
            values = (each if is_text(each) else shown_bytes(each) for each in fields)
            yield ", ".join(f"{name}: {json_value(value)}" for name, value in zip(names, values, strict=True))


class ObjectsBlock(Block):
    """Objects of JSON lines."""

    def __init__(self, rows: Sequence[Row], schema: pa.Schema | None) -> None:
        """schema: of the columns, where the output has columns."""
        self._lines = rows
        self._schema = schema
        self.queries = _queries_of_rows(rows)

    def names(self) -> Sequence[str]:
        assert self._schema is not None
        return self._schema.names  # type: ignore[no-any-return]

    def table(self) -> pa.Table:
        assert self._schema is not None
        values = [row.values or {} for row in self._lines]
        columns = [column_of([each.get(field.name) for each in values], field) for field in self._schema]
        return pa.table(columns, names=self._schema.names)

    def cells(self) -> Iterator[Sequence[str]]:
        assert self._schema is not None
        for row in self._lines:
            values = row.values or {}
            yield [cell(values.get(name)) for name in self._schema.names]

    def objects(self) -> Iterator[str]:
        for row in self._lines:
            # As it was written: numbers keep their digits, and keys their order.
            yield row.line.strip().decode()[1:-1].strip() if row.values is not None else ""


def read_block(shard: Shard, column: str, schema: pa.Schema | None, added: Sequence[str]) -> Block:
    """Read the rows of a shard that are labelled.

    column: the one with the queries; schema: of the input's columns, where JSON lines need one; added: columns that the
    output gets. Raises ConfigError for a file that cannot be read any more, or has one of those already.
    """
    path = Path(shard.path)
    if shard.format == "parquet":
        try:
            return _parquet_block(shard, column)
        except (OSError, pa.ArrowException) as e:  # pyarrow has both for a damaged page
            what = " ".join(str(e).split())
            raise ConfigError(
                f"{path}: row group {shard.row_group} cannot be read: {what}: write the file anew, or leave it out"
            ) from None
    try:
        reader = LineReader(path, shard.format, column, offset=shard.offset, line=shard.line)
        try:
            rows = list(islice(reader, shard.n_rows))
        finally:
            reader.close()
    except OSError as e:
        raise ConfigError(f"{path}: cannot be read: {e.strerror or e}") from None
    if len(rows) != shard.n_rows:
        raise ConfigError(f"{path}: has fewer rows than when its shards were planned: it was changed meanwhile")
    if shard.keep is not None:
        rows = [rows[place] for place in shard.keep]
    if shard.format == "jsonl":
        for row in rows:
            if row.values is not None and not row.values.keys().isdisjoint(added):
                check_names(added, list(row.values), Path(f"{path}, line {row.number}"))
        return ObjectsBlock(rows, schema)
    is_csv = shard.format != "text"
    return FieldsBlock(rows, reader.names if is_csv else (column,), is_csv=is_csv)


def _parquet_block(shard: Shard, column: str) -> Block:
    # Read bit by bit: else the columns of a whole row group are in memory, which may be all of a large file.
    with pq.ParquetFile(shard.path, pre_buffer=False, buffer_size=_BUFFER_BYTES) as file:
        found, at, end = [], 0, shard.skip + shard.n_rows
        if shard.n_rows:
            for batch in file.iter_batches(batch_size=8192, row_groups=[shard.row_group], use_threads=False):
                low, high = max(shard.skip - at, 0), min(end - at, batch.num_rows)
                if low < high:
                    found.append(batch.slice(low, high - low))
                at += batch.num_rows
                if at >= end:
                    break
        table = pa.Table.from_batches(found, file.schema_arrow)
    if len(table) != shard.n_rows:
        raise ConfigError(f"{shard.path}: has fewer rows than when its shards were planned: it was changed meanwhile")
    numbers: Sequence[int] = range(shard.first_row + 1, shard.first_row + shard.n_rows + 1)
    if shard.keep is not None:
        table = table.take(pa.array(shard.keep, pa.int64()))
        numbers = [numbers[place] for place in shard.keep]
    return TableBlock(table, queries_of_column(table.column(column), numbers))
