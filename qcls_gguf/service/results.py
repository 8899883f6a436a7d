"""Answers kept for queries that come again: bounded, least recently used first, those of one classifier."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import replace

from ..active_set import ActiveSet
from ..score.adjustment import Adjustment
from ..score.result import Counts, Result


class ResultCache:
    """The answers of one classifier. For the thread of the event loop."""

    def __init__(self, most: int) -> None:
        """most: answers to keep; 0: none."""
        self.most = most
        self._kept: OrderedDict[Hashable, Result] = OrderedDict()
        self.n_hits = self.n_misses = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, active: ActiveSet, query: str) -> Result | None:
        """The kept answer of a prompt set to a query, as one that took no time and fed no tokens; None for none."""
        key = _key(active, query)
        result = self._kept.get(key)
        if result is None:
            self.n_misses += 1
            return None
        self.n_hits += 1
        self._kept.move_to_end(key)
        counts = result.counts
        n_tokens = round((counts.n_tokens_new + counts.n_tokens_cached) / counts.n_queries)
        return replace(
            result,
            total_ms=0.0,
            stage_ms=dict.fromkeys(result.stage_ms, 0.0),
            counts=Counts(n_queries=1, n_decodes=0, n_tokens_new=0, n_tokens_cached=n_tokens, n_positions=0),
            wait_ms=0.0,
        )

    def put(self, active: ActiveSet, query: str, result: Result) -> None:
        """Keep an answer."""
        self._kept[_key(active, query)] = result
        if len(self._kept) > self.most:
            self._kept.popitem(last=False)


def _key(active: ActiveSet, query: str) -> Hashable:
    """Equal where the answer is: sets of equal digests may be calibrated differently."""
    return active.prompts.digest, tuple(map(_calibration, active.answers.adjustments)), query


def _calibration(adjustment: Adjustment) -> Hashable:
    parts = (adjustment.prior, adjustment.bias)
    return adjustment.temperature, *(None if part is None else part.tobytes() for part in parts)
