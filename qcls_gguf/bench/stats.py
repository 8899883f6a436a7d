"""The statistics of a benchmark: plain numbers to plain values."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

QUANTILES = {"min": 0.0, "p50": 0.5, "p90": 0.9, "p99": 0.99}


def summary(values: Sequence[float]) -> dict[str, float]:
    """min, p50, p90 and p99 of at least one value, between neighbours by linear interpolation."""
    found = np.quantile(np.asarray(values, np.float64), list(QUANTILES.values()))
    return dict(zip(QUANTILES, found.tolist(), strict=True))


def quantile_curve(values: Sequence[float]) -> list[float]:
    """The 0 %, 5 %, …, 100 % quantiles of at least one value."""
    return [float(value) for value in np.quantile(np.asarray(values, np.float64), np.linspace(0, 1, 21))]


def ratio(value: float, floor: float | None) -> float | None:
    """How many times the floor a value is, where the floor is known."""
    return None if floor is None else value / floor


def spread(values: Sequence[float]) -> float | None:
    """(largest - smallest) / median: how far repetitions lie apart; None for fewer than two of them."""
    if len(values) < 2:
        return None
    return (max(values) - min(values)) / statistics.median(values)
