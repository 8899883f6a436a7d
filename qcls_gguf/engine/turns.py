"""Whether those who wait share a decode: as far as the measured cost of a decode says that it pays."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Self


@dataclass(frozen=True, slots=True)
class TurnCost:
    """The time of a decode as a line over its tokens, of which only the proportion of its two parts counts."""

    fixed_tokens: float
    """what a decode costs beside its tokens, as the number of tokens that cost as much"""

    @classmethod
    def through(cls, few: tuple[int, float], many: tuple[int, float]) -> Self:
        """The line through two decodes, each (tokens, time)."""
        n_more, more = many[0] - few[0], many[1] - few[1]
        if n_more <= 0 or more <= 0:  # more tokens in no more time
            return cls(inf)
        return cls(max(0.0, few[1] * n_more / more - few[0]))

    def pays(self, n_in_turn: int, n_tokens: int, n_behind: int) -> bool:
        """Whether one who waits should join the turn of n_in_turn others, rather than be the first of the next.

        Each of those has to wait for its n_tokens as well. In return it and all who wait behind it, n_behind together,
        are spared the fixed part of a decode. It joins where that is less waiting in all.
        """
        return n_in_turn * n_tokens <= n_behind * self.fixed_tokens
