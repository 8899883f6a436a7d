"""The input files, their shards, checks that the files have not changed, and the values of their columns as text."""

import glob
import json
import math
import os
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from ..config.words import shown
from ..data.lines import is_text, shown_bytes
from ..data.rows import FORMATS, Format, Reading, Row, bare_name, check_once, listed_columns, open_rows
from ..errors import ConfigError, readable
from ..report.record import Record

_ENDINGS = ", ".join(FORMATS)


class Shard(Record):
    """Consecutive rows of an input, which become one output file."""

    first_row: int = Field(description="of the input, from 0")
    n_rows: int
    row_group: int = Field(default=0, description="of Parquet")
    skip: int = Field(default=0, description="rows of the row group before it")
    offset: int = Field(default=0, description="of text formats: bytes of the file before it")
    line: int = Field(default=1, description="and the number of its first line")


class Input(Record):
    """A file with its shards."""

    path: str
    format: Format
    n_bytes: int = Field(description="of the file when its shards were found")
    mtime_ns: int = Field(description="and when it was written, in ns since 1970")
    columns: dict[str, str] = Field(
        description="their names and Arrow types; empty for JSON lines whose objects stay as they are"
    )
    shards: tuple[Shard, ...]
    partition: dict[str, str | None] = Field(
        default={}, description="what the folders above it say of all its rows, as in `country=de`"
    )
    name: str = Field(default="", description="what the names of its output files begin with")

    def check_unchanged(self) -> None:
        """Raise ConfigError if the file was changed since its shards were found."""
        with readable(self.path):
            now = Path(self.path).stat()
        if (now.st_size, now.st_mtime_ns) != (self.n_bytes, self.mtime_ns):
            raise ConfigError(
                f"{self.path}: was changed since its shards were found ({self.n_bytes} bytes then, {now.st_size} now): "
                "name another output, or label everything again with `overwrite`"
            )


def find_inputs(given: Sequence[str]) -> list[Path]:
    """The files that names, patterns and folders denote, all of them once, sorted by name within a pattern or folder.

    A folder stands for the files in it and below with a known ending, or named `part-…`, except hidden ones. Raises
    ConfigError for a name or pattern without a file, and for files that cannot be read.
    """
    found: dict[str, Path] = {}
    for name in given:
        for path in _files_of(name):
            if not path.is_file():
                raise ConfigError(f"{path}: is no plain file: inputs are read more than once")
            found.setdefault(os.path.realpath(path), path)
    return list(found.values())


def _files_of(name: str) -> list[Path]:
    path = Path(name)
    if path.is_dir():
        below = [item for item in path.rglob("*") if not any(part[0] == "." for part in item.relative_to(path).parts)]
        files = [item for item in below if bare_name(item).suffix.lower() in FORMATS or item.name.startswith("part-")]
        files, why = [item for item in files if item.is_file()], f"the folder has no file that ends in {_ENDINGS}"
    else:
        names = [name] if path.exists() else filter(os.path.isfile, glob.glob(name, recursive=True))
        files, why = list(map(Path, names)), "no such file"
    if not files:
        raise ConfigError(f"{name}: {why}")
    return sorted(files)


def read_input(path: Path, reading: Reading, shard_rows: int, output: Format | None = None) -> Input:
    """An input with its shards of at most shard_rows rows; every one of its rows is in one of them.

    output: the format of the output, None: that of the input; for any other the keys of JSON lines are columns of text.
    Text is read through once. Raises ConfigError for a file that cannot be read, or has no such column.
    """
    with readable(str(path)):
        status = path.stat()
    shards: list[Shard] = []
    with open_rows(str(path), str(path), reading) as rows:
        if rows.format == "parquet":
            columns, shards = _parquet_shards(path, rows.query, shard_rows)
        else:
            keys: dict[str, None] = {}
            first, offset, line, n = 0, rows.offset, rows.next_line, 0
            has_columns = rows.format == "jsonl" and output not in (None, "jsonl")
            for row in rows:
                n += 1
                if has_columns:
                    keys |= dict.fromkeys(members_in(row))
                if n == shard_rows:
                    shards.append(Shard(first_row=first, n_rows=n, offset=offset, line=line))
                    first, offset, line, n = first + n, rows.offset, rows.next_line, 0
            if n or not shards:
                shards.append(Shard(first_row=first, n_rows=n, offset=offset, line=line))
            names = keys if has_columns else () if rows.format == "jsonl" else rows.header or (rows.query,)
            columns = dict.fromkeys(names, "string")
    partition = {name: value for name, value in _partition(path).items() if name not in columns}
    return Input(
        path=str(path),
        format=rows.format,
        n_bytes=status.st_size,
        mtime_ns=status.st_mtime_ns,
        columns=columns,
        shards=tuple(shards),
        partition=partition,
    )


def _partition(path: Path) -> dict[str, str | None]:
    """What the folders right above a file say of its rows, in the way of Hive."""
    found: dict[str, str | None] = {}
    for folder in path.absolute().parents:
        name, is_pair, value = folder.name.partition("=")
        if not (is_pair and name):
            break
        found[unquote(name)] = None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value)
    return dict(reversed(found.items()))


def _parquet_shards(path: Path, query_column: str, shard_rows: int) -> tuple[dict[str, str], list[Shard]]:
    with pq.ParquetFile(path) as file:
        schema, metadata = file.schema_arrow, file.metadata
        sizes = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    check_query_type(schema, query_column)
    shards = []
    for group, (first, size) in enumerate(zip(accumulate(sizes, initial=0), sizes, strict=False)):
        shards += [
            Shard(first_row=first + skip, n_rows=min(shard_rows, size - skip), row_group=group, skip=skip)
            for skip in range(0, size, shard_rows)
        ]
    return {field.name: str(field.type) for field in schema}, shards or [Shard(first_row=0, n_rows=0)]


def check_query_type(schema: pa.Schema, query_column: str) -> None:
    """Raise ConfigError if a table has no such column of text, or two columns of one name."""
    check_once(schema.names)
    first, dot, rest = query_column.partition(".")
    remedy = "name the one with the queries with `query_column`"
    if query_column in schema.names:
        kind = schema.field(query_column).type
    elif dot and first in schema.names:
        kind = schema.field(first).type
        for name in rest.split("."):
            if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
                raise ConfigError(f"has no column {query_column!r}: {first!r} is {kind}; {remedy}")
            kind = kind.field(name).type
    else:
        raise ConfigError(f"has no column {query_column!r}: {listed_columns(schema.names)}; {remedy}")
    if not may_be_text(kind):
        raise ConfigError(f"column {query_column!r} is {kind}, not text: {remedy}")


def check_names(names: Sequence[str], taken: Sequence[str]) -> None:
    """Raise ConfigError if the input already has a column that is to be added."""
    if twice := [name for name in names if name in taken]:
        raise ConfigError(
            f"has a column {shown(twice[0])} already, as the labels' is to be named: choose a `prefix` for these, or "
            "rename it"
        )


def first_rows(inputs: Sequence[Input], limit: int) -> list[Input]:
    """The inputs with the first rows of all together."""
    found = []
    for input_ in inputs:
        shards = []
        for shard in input_.shards:
            n = min(shard.n_rows, limit)
            limit -= n
            if n or not shard.n_rows:
                shards.append(shard.model_copy(update={"n_rows": n}))
        found.append(input_.model_copy(update={"shards": tuple(shards)}))
    return found


_TEXTS = (
    pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_binary, pa.types.is_large_binary,
    pa.types.is_binary_view, pa.types.is_null,
)  # fmt: skip


def may_be_text(kind: pa.DataType) -> bool:
    """Whether the values of a column's type are texts, or bytes that may be UTF-8."""
    if isinstance(kind, pa.BaseExtensionType):
        return may_be_text(kind.storage_type)
    return any(is_kind(kind.value_type if pa.types.is_dictionary(kind) else kind) for is_kind in _TEXTS)


def texts_of(column: pa.Array | pa.ChunkedArray) -> list[str | None]:
    """The texts of a column; bytes that are not valid UTF-8 become surrogates."""
    if isinstance(column, pa.ChunkedArray):
        return [text for chunk in column.chunks for text in texts_of(chunk)]
    if isinstance(column.type, pa.BaseExtensionType):
        return texts_of(column.storage)
    if pa.types.is_dictionary(column.type):
        texts = texts_of(column.dictionary)
        return [None if place is None else texts[place] for place in column.indices.to_pylist()]
    is_view = pa.types.is_binary_view(column.type)
    values = column.to_pylist() if is_view else column.cast(pa.large_binary()).to_pylist()
    return [None if value is None else value.decode(errors="surrogateescape") for value in values]


def json_of(value: object) -> str:
    """A value as JSON; values that JSON cannot represent become null or text."""
    return json.dumps(plain(value), ensure_ascii=False)


def plain(value: Any) -> Any:
    """A value with JSON's types; invalid UTF-8 and lone surrogates become escapes, numbers that are not finite null."""
    if isinstance(value, str):
        return value if is_text(value) else shown_bytes(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def members_in(row: Row) -> Mapping[str, Any]:
    """The object on a line of JSON; lone surrogates stay escapes, because text files cannot contain them."""
    values = row.values or {}
    return plain(values) if "\\u" in row.line else values
