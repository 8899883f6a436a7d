"""The rows of a shard in memory: their values, their distinct queries, and why a row has none."""

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
from ..data.rows import NULL, Row
from ..errors import ConfigError
from .columns import column_of, json_of, values_of
from .inputs import Input, Shard, check_names, open_rows

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
    """for each row without a query the reason"""
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
    joined = pa.concat_arrays([pa.array([], pa.large_binary()), *chunked.cast(pa.large_binary()).chunks])
    encoded = pc.dictionary_encode(joined)
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
    reasons = {row: f"row {numbers[row]}: {refused[int(code[row])]}" for row in bad}
    return Queries(texts=texts, index=index, reasons=reasons, unit="row", numbers=numbers)


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
    """The rows of a shard: a table of Arrow, the values of each row, or objects of JSON lines as they were written."""

    def __init__(
        self,
        queries: Queries,
        schema: pa.Schema | None,
        *,
        table: pa.Table | None = None,
        rows: Sequence[Sequence[object]] = (),
        lines: Sequence[str] | None = None,
    ) -> None:
        """schema: of the columns of a table or of rows. lines: of each object its members, without braces."""
        self.queries = queries
        self._schema, self._table, self._rows, self._lines = schema, table, rows, lines

    @property
    def names(self) -> list[str]:
        """Of the input's columns."""
        return [] if self._schema is None else self._schema.names

    def table(self) -> pa.Table:
        """The input's columns."""
        if self._table is not None:
            return self._table
        assert self._schema is not None
        columns = zip(*self._rows, strict=True) if self._rows else ([] for _ in self._schema)
        arrays = [column_of(values, field) for values, field in zip(columns, self._schema, strict=True)]
        return pa.table(arrays, names=self._schema.names)

    def rows(self) -> Iterator[Sequence[Any]]:
        """The values of each row; a byte of CSV that is no UTF-8 is a surrogate."""
        return iter(self._rows) if self._table is None else rows_of(self._table)

    def members(self) -> Iterator[str]:
        """Each row as the members of a JSON object, without braces."""
        if self._lines is not None:
            yield from self._lines
            return
        names = [json_of(name) for name in self.names]
        for row in self.rows():
            yield ", ".join(f"{name}: {json_of(value)}" for name, value in zip(names, row, strict=True))


def rows_of(table: pa.Table) -> Iterator[Sequence[Any]]:
    """The values of each row of a table."""
    for batch in table.to_batches(max_chunksize=1024):
        columns = [values_of(column) for column in batch.columns]
        yield from zip(*columns, strict=True) if columns else ([] for _ in range(batch.num_rows))


def read_block(input_: Input, shard: Shard, query_column: str, added: Sequence[str]) -> Block:
    """Read the rows of a shard that are labelled.

    added: columns that the output gets. Raises ConfigError for a file that cannot be read any more, or has one of those
    already.
    """
    path = Path(input_.path)
    try:
        if input_.format == "parquet":
            block = _parquet_block(path, shard, query_column)
        else:
            block = _text_block(path, input_, shard, query_column, added)
    except (OSError, pa.ArrowException) as e:  # pyarrow has both for a damaged page
        if input_.format != "parquet":
            raise ConfigError(f"{path}: cannot be read: {getattr(e, 'strerror', None) or e}") from None
        what = " ".join(str(e).split())
        raise ConfigError(
            f"{path}: row group {shard.row_group} cannot be read: {what}: write the file anew, or leave it out"
        ) from None
    if len(block.queries.index) != shard.n_kept:
        raise ConfigError(f"{path}: has fewer rows than when its shards were planned: it was changed meanwhile")
    return block


def _text_block(path: Path, input_: Input, shard: Shard, query_column: str, added: Sequence[str]) -> Block:
    with open_rows(path, query_column, offset=shard.offset, line=shard.line) as (reader, _):
        rows = list(islice(reader, shard.n_rows))
    if shard.keep is not None:
        rows = [rows[place] for place in shard.keep if place < len(rows)]
    queries, schema = _queries_of_rows(rows), input_.column_types
    if input_.format == "text":
        return Block(queries, schema, rows=[(row.query,) for row in rows])
    if input_.format != "jsonl":
        n = len(reader.header)
        return Block(queries, schema, rows=[(*row.fields, *[""] * n)[:n] for row in rows])
    for row in rows:
        if row.values is not None and not row.values.keys().isdisjoint(added):
            check_names(added, list(row.values), f"{path}, line {row.number}")
    if schema is not None:
        return Block(queries, schema, rows=[[(row.values or {}).get(name) for name in schema.names] for row in rows])
    # As they were written: numbers keep their digits, and keys their order.
    lines = ["" if row.values is None else row.line.strip().decode()[1:-1].strip() for row in rows]
    return Block(queries, None, lines=lines)


def _parquet_block(path: Path, shard: Shard, query_column: str) -> Block:
    # Read bit by bit: else the columns of a whole row group are in memory, which may be all of a large file.
    with pq.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER_BYTES) as file:
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
    numbers: Sequence[int] = range(shard.first_row + 1, shard.first_row + shard.n_rows + 1)
    if shard.keep is not None:
        table = table.take(pa.array(shard.keep, pa.int64()))
        numbers = [numbers[place] for place in shard.keep]
    return Block(queries_of_column(table.column(query_column), numbers), table.schema, table=table)
