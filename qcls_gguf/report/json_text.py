"""How records are written as JSON."""

from __future__ import annotations

import json
from typing import Any


def json_text(value: Any, *, indent: int | None = None) -> str:
    """JSON with every script as it is, and bytes of a path that are no UTF-8 as escapes of JSON, such as `\\udcff`.

    Raises ValueError for a number that is not finite, which JSON cannot say.
    """
    text = json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False)
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()
