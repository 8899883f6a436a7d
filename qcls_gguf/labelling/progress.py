"""How far labelling has come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter


@dataclass(slots=True, kw_only=True)
class Progress:
    """Rows and queries of a run; changed as it goes on."""

    n_rows: int
    """that this run is to label"""
    done_rows: float = 0.0
    n_queries: int = 0
    """distinct queries that were answered"""
    n_computed: int = 0
    """of these, those that were not in the cache"""
    n_shards: int = 0
    """of all inputs"""
    done_shards: int = 0
    """files that are there, those of earlier runs among them"""
    began: float = field(default_factory=perf_counter)

    @property
    def seconds(self) -> float:
        """Since the first shard began."""
        return perf_counter() - self.began

    @property
    def rows_per_s(self) -> float:
        return self.done_rows / max(self.seconds, 1e-9)

    @property
    def left_s(self) -> float | None:
        """Seconds that the other rows take at this rate; None before any is done."""
        return (self.n_rows - self.done_rows) / self.rows_per_s if self.done_rows else None

    @property
    def distinct_share(self) -> float:
        """Distinct queries of the rows."""
        return self.n_queries / self.done_rows if self.done_rows else 0.0

    def line(self) -> str:
        """All of it in a line of text."""
        left = "" if self.left_s is None else f", {duration(self.left_s)} left"
        return (
            f"{self.done_rows:,.0f} of {self.n_rows:,} rows, {self.rows_per_s:,.1f} rows/s, "
            f"{self.distinct_share:.0%} distinct, {self.done_shards} of {self.n_shards} shards{left}"
        )


OnProgress = Callable[[Progress], None]


def duration(seconds: float) -> str:
    """A time in words."""
    minutes, hours = seconds / 60, seconds / 3600
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{minutes:.0f} min" if minutes < 100 else f"{hours:.1f} h" if hours < 100 else f"{hours / 24:.1f} days"
