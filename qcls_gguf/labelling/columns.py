"""Types of columns, and values as text where a format has no types."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..config.words import shown
from ..data.encoding import is_text, shown_bytes
from ..data.rows import Row, check_once, listed_columns
from ..errors import ConfigError, prefixed


def check_query_type(schema: pa.Schema, query_column: str, what: Path | str) -> None:
    """Raise ConfigError if a table has no such column of text, or two columns of one name."""
    remedy = "name the one with the queries with `query_column`"
    with prefixed(str(what)):
        check_once(schema.names)
    if query_column not in schema.names:
        raise ConfigError(f"{what}: has no column {query_column!r}: {listed_columns(schema.names)}; {remedy}")
    kind = schema.field(query_column).type
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
    if not any(is_text_type(value) for is_text_type in texts):
        raise ConfigError(f"{what}: column {query_column!r} is {kind}, not text: {remedy}")


def check_names(names: Sequence[str], taken: Sequence[str], what: Path | str) -> None:
    """Raise ConfigError if the input already has a column that is to be added."""
    if twice := [name for name in names if name in taken]:
        raise ConfigError(
            f"{what}: has a column {shown(twice[0])} already, as the labels' is to be named: choose a `prefix` for "
            "these, or rename it"
        )


class ColumnTypes:
    """Finds a type for each key of the objects of JSON lines."""

    def __init__(self) -> None:
        self._kinds: dict[str, set[str]] = {}

    def add(self, values: Mapping[str, object]) -> None:
        """Take an object into account."""
        for name, value in values.items():
            kinds = self._kinds.setdefault(name, set())
            if value is not None:
                kinds.add(_kind(value))

    def schema(self) -> pa.Schema:
        """A column for each key; objects, lists, and values without a common type are text."""
        return pa.schema((name, _column_type(kinds)) for name, kinds in self._kinds.items())


def _kind(value: object) -> str:
    """A value's type by the columns that may have it: `int` those of 64 bits and of floats, `long` the first alone."""
    if isinstance(value, int) and not isinstance(value, bool):
        return "int" if abs(value) <= 2**53 else "long" if -(2**63) <= value < 2**63 else "large"
    return type(value).__name__


def _column_type(kinds: set[str]) -> pa.DataType:
    if not kinds:
        return pa.null()
    numbers = ({"int", "long"}, pa.int64()), ({"int", "float"}, pa.float64())
    return next((found for those, found in (({"bool"}, pa.bool_()), *numbers) if kinds <= those), pa.string())


def column_of(values: Sequence[object], field: pa.Field) -> pa.Array:
    """A column of a schema that ColumnTypes found, or of text."""
    if pa.types.is_string(field.type):  # which have other values as JSON
        texts = (plain(value) if value is None or isinstance(value, str) else json_of(value) for value in values)
        return pa.array(texts, field.type)
    return pa.array(values, field.type)


def texts_of(column: pa.Array | pa.ChunkedArray) -> list[str | None]:
    """The texts of a column; bytes that are not valid UTF-8 become surrogates."""
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
        return {plain(str(key)): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def members_in(row: Row) -> Mapping[str, Any]:
    """The object on a line of JSON; lone surrogates stay escapes, because text files cannot contain them."""
    values = row.values or {}
    return plain(values) if b"\\u" in row.line else values


def cell(value: object) -> str:
    """A value as a CSV field: text unchanged, nothing for null, JSON for lists and objects."""
    found = value if isinstance(value, str) else plain(value)
    if found is None:
        return ""
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
