"""The most frequent queries of all inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from .blocks import read_block
from .job import Frequent, Task

MOST_COUNTED = 2_000_000
"""different queries in memory at once, about 300 MB"""
CHUNK = 2000
"""queries that one process gets at a time"""


def frequent_queries(tasks: Sequence[Task], column: str) -> list[str]:
    """Queries that come more than once, the most frequent first; of equally frequent ones the first to come.

    Where there are more different ones than MOST_COUNTED the rarest are left out again and again as they are counted:
    a query that is frequent stays, and its place may be a little too far behind.
    """
    counts: Counter[str] = Counter()
    for task in tasks:
        queries = read_block(task.shard, column, task.planned.schema, ()).queries
        n = np.bincount(queries.index[queries.index >= 0], minlength=len(queries.texts))
        counts.update(dict(zip(queries.texts, n.tolist(), strict=True)))
        least = 1
        while len(counts) > MOST_COUNTED:
            counts = Counter({query: n for query, n in counts.items() if n > least})
            least *= 2
    return [query for query, n in counts.most_common() if n > 1]


def chunks(queries: Sequence[str]) -> Iterator[Frequent]:
    """The queries in tasks."""
    for start in range(0, len(queries), CHUNK):
        yield Frequent(queries=tuple(queries[start : start + CHUNK]))
