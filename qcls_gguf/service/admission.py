"""How much may be in the service at once, and when a client that is refused should come again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .refusal import RefusedError
from .settings import RequestLimits

_SMOOTHING = 0.1
_SOONEST_MS = 20.0
_LATEST_MS = 60_000.0


class Admission:
    """Counts what has been admitted and is not answered yet. One thread at a time: that of the event loop."""

    def __init__(self, limits: RequestLimits) -> None:
        self._limits = limits
        self.n_requests = 0
        self.n_tokens = 0
        self._n_ahead = 0
        self._query_tokens = 0.0
        self._query_ms = 0.0
        self._request_ms = 0.0

    @contextmanager
    def admitted(self, n_tokens: int, n_at_once: int, turn_ms: float = 0.0) -> Iterator[None]:
        """A block for as long as a request is in the service.

        n_tokens: what it will feed, estimated; n_at_once: what of it may stand before a request that comes now;
        turn_ms: how long those that are computed now have taken. Raises RefusedError (503) where too much is in the
        service already; a request alone is always admitted.
        """
        if refusal := self._refusal(n_tokens, turn_ms):
            reason, what = refusal
            raise RefusedError(503, reason, f"{what}: ask again later", retry_ms=self.retry_ms)
        self.n_requests += 1
        self.n_tokens += n_tokens
        self._n_ahead += n_at_once
        try:
            yield
        finally:
            self.n_requests -= 1
            self.n_tokens -= n_tokens
            self._n_ahead -= n_at_once

    def _refusal(self, n_tokens: int, turn_ms: float) -> tuple[str, str] | None:
        """(the reason, what is too much) for a request that comes now, or None."""
        limits = self._limits
        if self.n_requests and limits.longest_wait is not None:
            wait_ms, most_ms = self.wait_ms(turn_ms), limits.longest_wait.ms(self._request_ms)
            if wait_ms > most_ms:
                return "wait", f"a request would wait about {wait_ms:.1f} ms, and {most_ms:.1f} ms are allowed"
        if self.n_requests >= limits.waiting_requests:
            return "requests", f"{self.n_requests} requests are in the service, as many as it admits"
        if self.n_requests and self.n_tokens + n_tokens > limits.waiting_tokens:
            there = f"about {self.n_tokens} tokens are in the service"
            return "tokens", f"{there}, this request has {n_tokens}, and {limits.waiting_tokens} are admitted"
        return None

    def learn(self, n_tokens: float, ms: float, n_queries: int = 1) -> None:
        """Note a query whose turn took so long and answered so many. n_tokens: of the query, as `admitted` counts them;
        kept queries leave fewer to feed.
        """
        if n_tokens > 0:
            share = _SMOOTHING if self._query_tokens else 1.0
            self._query_tokens += (n_tokens - self._query_tokens) * share
            self._query_ms += (ms / n_queries - self._query_ms) * share
            self._request_ms += (ms - self._request_ms) * share

    @property
    def _ms_per_token(self) -> float:
        """Of long and short queries together: each has a share of its turn's time, whatever its length."""
        return self._query_ms / self._query_tokens if self._query_tokens else 0.0

    def wait_ms(self, turn_ms: float = 0.0) -> float:
        """How long a request that comes now would wait for those before it.

        turn_ms: how long those that are computed now have taken. What they have left is what a request takes less that;
        where they have taken longer already, they are expected to take as long again as they are late.
        """
        ahead_ms = self._n_ahead * self._ms_per_token
        first_ms = min(self._request_ms, ahead_ms)
        return ahead_ms - first_ms + abs(first_ms - turn_ms) if first_ms else 0.0

    @property
    def retry_ms(self) -> float:
        """When about half of what is in the service will be done."""
        return min(max(self.n_tokens * self._ms_per_token / 2, _SOONEST_MS), _LATEST_MS)
