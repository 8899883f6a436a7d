"""How many requests may be in the service at once, and when a client that is refused should come again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .refusal import RefusedError

_SMOOTHING = 0.1
_SOONEST_MS = 20.0
_LATEST_MS = 60_000.0


class Admission:
    """Counts what has been admitted and is not answered yet. One thread at a time: that of the event loop."""

    def __init__(self, most_requests: int) -> None:
        self._most_requests = most_requests
        self.n_requests = 0
        self.n_queries = 0
        self._query_ms = 0.0

    @contextmanager
    def admitted(self, n_queries: int) -> Iterator[None]:
        """A block for as long as a request is in the service.

        n_queries: that it asks, or questions. Raises RefusedError (503), which says when about half of what is in the
        service will be done, where there are as many requests as may be.
        """
        if self.n_requests >= self._most_requests:
            retry_ms = min(max(self.n_queries * self._query_ms / 2, _SOONEST_MS), _LATEST_MS)
            what = f"{self.n_requests} requests are in the service, as many as it admits: ask again later"
            raise RefusedError(503, "requests", what, retry_ms=retry_ms)
        self.n_requests += 1
        self.n_queries += n_queries
        try:
            yield
        finally:
            self.n_requests -= 1
            self.n_queries -= n_queries

    def learn(self, ms: float) -> None:
        """Note what a query took of its turn."""
        self._query_ms += (ms - self._query_ms) * (_SMOOTHING if self._query_ms else 1.0)
