"""How long requests take here: the prompt sets that are left take turns, request by request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..loaded_prompts import Answering

_N_WARM_UP = 3


def times_in_turns(
    sets: Mapping[str, Answering], queries: Sequence[str], on_query: Callable[[], None]
) -> dict[str, list[float]]:
    """Milliseconds of each set's requests; requests before the first of the queries are not timed."""
    found: dict[str, list[float]] = {name: [] for name in sets}
    for query in queries[:_N_WARM_UP]:
        for prompts in sets.values():
            prompts.classify(query)
    for query in queries:
        for name, prompts in sets.items():
            found[name].append(prompts.classify(query).total_ms)
        on_query()
    return found
