"""Types of columns, and values as text where a format has no types."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..config.words import MAX_LISTED, shown
from ..data.encoding import is_text, shown_bytes
from ..errors import ConfigError

_N_TYPED = 10_000
"""rows whose types are found together"""


def check_query_type(schema: pa.Schema, query_column: str, what: Path | str) -> None:
    """Raise ConfigError if a table has no such column of text, or several."""
    remedy = "name the one with the queries with `query_column`"
    if schema.names.count(query_column) != 1:
        names = ", ".join(map(shown, schema.names[:MAX_LISTED]))
        n = "several columns" if query_column in schema.names else "no column"
        raise ConfigError(f"{what}: has {n} {query_column!r}: the columns are {names}; {remedy}")
    kind = schema.field(query_column).type
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
    if not any(is_text_type(value) for is_text_type in texts):
        raise ConfigError(f"{what}: column {query_column!r} is {kind}, not text: {remedy}")


def check_names(names: Sequence[str], taken: Sequence[str], what: Path | str) -> None:
    """Raise ConfigError where a column that is to be added is in the input already."""
    if twice := [name for name in names if name in taken]:
        raise ConfigError(
            f"{what}: has a column {shown(twice[0])} already, as the labels' is to be named: choose a `prefix` for "
            "these, or rename it"
        )


class ColumnTypes:
    """Finds a type for each key of the objects of JSON lines."""

    def __init__(self) -> None:
        self._waiting: list[Mapping[str, object]] = []
        self._types: dict[str, pa.DataType | None] = {}

    def add(self, values: Mapping[str, object]) -> None:
        """Take an object into account."""
        self._waiting.append(values)
        if len(self._waiting) == _N_TYPED:
            self._find()

    def _find(self) -> None:
        for name in dict.fromkeys(name for each in self._waiting for name in each):
            found = _type_of([each[name] for each in self._waiting if name in each])
            self._types[name] = _common(self._types[name], found) if name in self._types else found
        self._waiting = []

    def schema(self) -> pa.Schema:
        """A column for each key; values without a common type are text."""
        self._find()
        return pa.schema((name, kind or pa.string()) for name, kind in self._types.items())


def _type_of(values: Sequence[object]) -> pa.DataType | None:
    try:
        kind = pa.infer_type(values)
        pa.array(values, kind)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        return None
    return None if _has_empty_struct(kind) else kind


def _common(one: pa.DataType | None, other: pa.DataType | None) -> pa.DataType | None:
    if one is None or other is None or one == other:
        return one if one == other else None
    try:
        schemas = [pa.schema([("x", each)]) for each in (one, other)]
        return pa.unify_schemas(schemas, promote_options="permissive").field("x").type
    except pa.ArrowException:
        return None


def _has_empty_struct(kind: pa.DataType) -> bool:
    """Parquet has no such type."""
    if pa.types.is_struct(kind):
        return kind.num_fields == 0 or any(_has_empty_struct(field.type) for field in kind)
    return pa.types.is_list(kind) and _has_empty_struct(kind.value_type)


def column_of(values: Sequence[object], field: pa.Field) -> pa.Array:
    """A column of a schema that ColumnTypes found, or of text."""
    if pa.types.is_string(field.type):  # values of other types have no type in common: JSON as text
        plain = (_plain(value) if value is None or isinstance(value, str) else json_of(value) for value in values)
        return pa.array(plain, field.type)
    return pa.array(values, field.type)


def texts_of(column: pa.Array | pa.ChunkedArray) -> list[str | None]:
    """The texts of a column; a byte that is no UTF-8, which a file may have all the same, is a surrogate."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    values = column.cast(pa.large_binary()).to_pylist()
    return [None if value is None else value.decode(errors="surrogateescape") for value in values]


def values_of(column: pa.Array) -> Sequence[Any]:
    """Python's values of a column."""
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError:
        return texts_of(column)


def json_of(value: object) -> str:
    """A value as JSON; what JSON cannot say is null or text."""
    return json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value if is_text(value) else shown_bytes(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def cell(value: object) -> str:
    """A value as CSV has it: text as it is, nothing for null, JSON for all that has parts."""
    plain = value if isinstance(value, str) else _plain(value)
    if plain is None:
        return ""
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
