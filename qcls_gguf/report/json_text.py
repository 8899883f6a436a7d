"""How records are written as JSON."""

from __future__ import annotations

import json
from typing import Any


def json_text(value: Any, *, indent: int | None = None) -> str:
    """JSON with every script as it is. Raises ValueError for a number that is not finite, which JSON cannot say."""
    return json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False)
