"""Whether waiting jobs should share a decode, by the measured cost of a decode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import Self

from ..errors import PlanError

_LETTERS = [chr(n) for n in range(ord("a"), ord("z") + 1)]
_PROBE_WORDS = 6
"""words per probe query"""
_N_ROUNDS = 8
_MOST_S = 0.5
"""Seconds after which no further round begins."""


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

    def pays(self, n_in_turn: int, n_tokens: int, n_waiting: int) -> bool:
        """Whether a waiting job should join the turn of n_in_turn others, rather than begin the next turn.

        If it joins, each of the others also waits for its n_tokens. In return it and all jobs after it, n_waiting
        together, save the fixed part of a decode. It joins if that makes the total waiting time shorter.
        """
        return n_in_turn * n_tokens <= n_waiting * self.fixed_tokens


def measured_turn_cost(ask: Callable[[Sequence[str]], int], max_batch: int) -> TurnCost:
    """The fixed cost of a decode, from the shortest decodes of one query and of max_batch queries, run in turns.

    ask(queries) answers them together and returns how many tokens were fed. The cost is 0, so that no decode is shared,
    if max_batch is 1 or short queries are too long for the configuration.
    """
    n_queries = min(max_batch, len(_LETTERS) - _PROBE_WORDS)
    queries = [" ".join(_LETTERS[n : n + _PROBE_WORDS]) for n in range(n_queries)]
    if n_queries < 2:
        return TurnCost(0.0)
    shortest: dict[int, float] = {}
    until = perf_counter() + _MOST_S
    for n_round in range(_N_ROUNDS):
        for asked in (queries[:1], queries):
            began = perf_counter()
            try:
                n_tokens = ask(asked)
            except PlanError:  # in some vocabulary these queries have more tokens than are allowed
                return TurnCost(0.0)
            took = perf_counter() - began
            if n_round:  # the first one makes plans and graphs
                shortest[n_tokens] = min(took, shortest.get(n_tokens, took))
        if n_round and perf_counter() > until:
            break
    least, most = min(shortest), max(shortest)
    return TurnCost.through((least, shortest[least]), (most, shortest[most]))
