"""Numbers as tables and pages show them; a dash stands for what there is none of."""

from __future__ import annotations

NO_VALUE = "–"


def percent(value: float | None) -> str:
    """A share."""
    return NO_VALUE if value is None else f"{value:.1%}"


def number(value: float | None, digits: int = 3) -> str:
    """A number with so many digits behind the point."""
    return NO_VALUE if value is None else f"{value:.{digits}f}"


def measured(value: float | None) -> str:
    """A measured number with about three digits that mean something."""
    if value is None:
        return NO_VALUE
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"


def difference(value: float | None) -> str:
    """A small difference; None is one that is not finite."""
    return "NOT FINITE" if value is None else "0" if value == 0 else f"{value:.1e}"


def scientific(value: float | None) -> str:
    """A small number."""
    return NO_VALUE if value is None else f"{value:.1e}"
