"""Whether waiting callers share a decode, by the measured cost of a decode."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Self


@dataclass(frozen=True, slots=True)
class TurnCost:
    """A decode's time is modelled as a fixed part plus a part per token; only their ratio is needed."""

    fixed_tokens: float
    """the fixed part, as the number of tokens that take as long"""

    @classmethod
    def through(cls, few: tuple[int, float], many: tuple[int, float]) -> Self:
        """The line through two decodes, each (tokens, time)."""
        n_more, more = many[0] - few[0], many[1] - few[1]
        if n_more <= 0 or more <= 0:  # more tokens in no more time
            return cls(inf)
        return cls(max(0.0, few[1] * n_more / more - few[0]))

    def pays(self, n_in_turn: int, n_tokens: int, n_behind: int) -> bool:
        """Whether a waiting caller should join the turn of n_in_turn others, rather than begin the next turn.

        If it joins, each of the others also waits for its n_tokens. In return it and all callers behind it, n_behind
        together, save the fixed part of a decode. It joins if that makes the total waiting time shorter.
        """
        return n_in_turn * n_tokens <= n_behind * self.fixed_tokens
