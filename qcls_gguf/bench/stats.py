"""The statistics of a benchmark."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

from .decode_records import DecodeQuantiles
from .records import Quantiles


def quantiles(values: Sequence[float]) -> Quantiles:
    """Of at least one value; between neighbours by linear interpolation."""
    least, p50, p90, p99 = np.quantile(np.asarray(values, np.float64), [0, 0.5, 0.9, 0.99]).tolist()
    return Quantiles(min=least, p50=p50, p90=p90, p99=p99)


def decode_quantiles(values: Sequence[float]) -> DecodeQuantiles:
    """The same without p99, which few decodes do not give."""
    of_values = quantiles(values)
    return DecodeQuantiles(min=of_values.min, p50=of_values.p50, p90=of_values.p90)


def quantile_curve(values: Sequence[float]) -> list[float]:
    """The 0 %, 5 %, …, 100 % quantiles of at least one value."""
    return [float(value) for value in np.quantile(np.asarray(values, np.float64), np.linspace(0, 1, 21))]


def ratio(value: float, least: float | None) -> float | None:
    """value / least; None where the least is not known."""
    return None if least is None else value / least


def spread(values: Sequence[float]) -> float | None:
    """(largest - smallest) / median: how far repetitions lie apart; None for fewer than two of them."""
    if len(values) < 2:
        return None
    return (max(values) - min(values)) / statistics.median(values)
