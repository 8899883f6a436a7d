"""Values of columns as text where a format has no types, and texts of columns of any type that may have them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from ..data.lines import is_text, shown_bytes
from ..data.rows import Row

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
