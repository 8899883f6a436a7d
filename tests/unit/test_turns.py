"""When a call joins a turn: where it is less waiting in all, by the line of a decode's time over its tokens."""

from __future__ import annotations

from math import inf

import pytest

from qcls_gguf.core.sharing import TurnCost


def waiting(cost: TurnCost, n_calls: int, n_tokens: int, first: int) -> float:
    """The waiting of all calls, in tokens, where the first `first` of them share a decode and the others do not."""
    first_ends = cost.fixed_tokens + first * n_tokens
    behind = [first_ends + (n + 1) * (cost.fixed_tokens + n_tokens) for n in range(n_calls - first)]
    return first * first_ends + sum(behind)


@pytest.mark.parametrize("fixed", [0.0, 3.0, 20.0, 60.0, 500.0])
@pytest.mark.parametrize("n_calls", [2, 3, 5, 12])
def test_a_call_joins_where_all_wait_less_for_it(fixed: float, n_calls: int) -> None:
    cost, n_tokens = TurnCost(fixed), 26
    for in_turn in range(1, n_calls):
        apart, joined = (waiting(cost, n_calls, n_tokens, n) for n in (in_turn, in_turn + 1))
        assert cost.pays(in_turn, n_tokens, n_calls - in_turn) == (joined <= apart)


def test_the_line() -> None:
    assert TurnCost.through((20, 22.0), (80, 82.0)) == TurnCost(2)
    assert TurnCost.through((20, 22.0), (80, 22.0)) == TurnCost(inf)
    assert TurnCost.through((20, 10.0), (80, 100.0)) == TurnCost(0)
    assert not TurnCost(0).pays(1, 10, 100)
    assert TurnCost(inf).pays(3, 10, 1)
