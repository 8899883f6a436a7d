"""Numbers as text, the same on a terminal and in HTML."""

from __future__ import annotations

NO_VALUE = "–"


def percent(share: float | None) -> str:
    """A share in per cent, or a dash where there is none."""
    return NO_VALUE if share is None else f"{share:.1%}"


def number(value: float | None, digits: int = 3) -> str:
    """A number with so many decimals, or a dash where there is none."""
    return NO_VALUE if value is None else f"{value:.{digits}f}"
