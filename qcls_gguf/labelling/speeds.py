"""How many queries a decode should have: measured on a sample of them before the first decode that counts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from time import perf_counter

from ..engine.capacity import N_UNTIL_CAPTURED
from ..errors import QclsError
from ..loaded_prompts import Answering
from ..pipeline import Tokenized
from .batches import MOST, prepared_batch, results_of
from .records import BatchSpeed

_N_MEASURED = 88
_MOST_S = 6.0
_PAYS = 0.97
"""of the time of fewer queries a decode: a smaller gain is within the noise of such a short measurement"""


def measure_batches(prompts: Answering, queries: Sequence[str], most: int = MOST) -> list[BatchSpeed]:
    """How fast some of the queries are labelled one by one and 2, 4, 8, … in a decode; the sizes run in turns.

    Stops after some seconds, with the sizes that were measured. Sizes that need more than one decode are left out.
    Where few shapes come again and again, decodes of shapes that are known already are timed, as most of a run are.
    """
    usable = _usable(prompts, queries)
    sizes = [1]
    while sizes[-1] * 2 <= min(most, len(usable)):
        sizes.append(sizes[-1] * 2)
    turns = _Turns(prompts)
    blocks = [usable[start : start + sizes[-1]] for start in range(0, len(usable), sizes[-1])]
    began = perf_counter()
    for round_, block in enumerate([blocks[0], *blocks] if usable else []):  # the first one warms up
        for size in list(sizes):
            for start in range(0, len(block) - size + 1, size):
                if not turns.take(block[start : start + size], counts=round_ > 0):
                    sizes = [each for each in sizes if each < size]
                    break
        if round_ and perf_counter() - began > _MOST_S:
            break
    return [turns.speed(size) for size in sizes if turns.n_queries[size]]


def _usable(prompts: Answering, queries: Sequence[str]) -> list[Tokenized]:
    """Some of the queries, the shortest first, without the longest: of these a decode holds fewer."""
    usable = []
    for query in queries:
        try:
            usable.append(prompts.tokenize(query))
        except QclsError:
            continue
        if len(usable) == _N_MEASURED:
            break
    usable.sort(key=lambda each: each.n_tokens)
    return usable[: max(1, len(usable) * 3 // 4)]


class _Turns:
    """Decodes of several sizes, and what those that count took."""

    def __init__(self, prompts: Answering) -> None:
        self.n_queries: Counter[int] = Counter()
        self._prompts = prompts
        self._on_rungs = prompts.pays_on_rungs
        self._n_untimed = N_UNTIL_CAPTURED if self._on_rungs else 0
        self._seen: Counter[tuple[int, int]] = Counter()
        self._n_tokens: Counter[int] = Counter()
        self._seconds: defaultdict[int, float] = defaultdict(float)

    def take(self, part: Sequence[Tokenized], *, counts: bool) -> bool:
        """Compute a batch; false for one that needs several decodes."""
        size = len(part)
        on_rungs = self._on_rungs and size > 1
        prepared = prepared_batch(self._prompts, part, on_rungs=on_rungs)
        if prepared is not None and prepared.n_decodes > 1 and size > 1:
            return False
        shape = size, 0 if prepared is None else prepared.n_tokens
        queries = [each.item[1] for each in part]
        for _ in range(self._n_untimed - self._seen[shape]):
            results_of(self._prompts, queries, prepared_batch(self._prompts, part, on_rungs=on_rungs))
        self._seen[shape] = self._n_untimed
        began = perf_counter()
        results = results_of(self._prompts, queries, prepared)
        if counts:
            self._seconds[size] += perf_counter() - began
            self.n_queries[size] += size
            self._n_tokens[size] += results[0].counts.n_tokens_new
        return True

    def speed(self, size: int) -> BatchSpeed:
        """Of a size that was timed."""
        n_queries = self.n_queries[size]
        return BatchSpeed(
            size=size,
            n_queries=n_queries,
            n_tokens=self._n_tokens[size],
            queries_per_s=n_queries / self._seconds[size],
        )


def best_size(speeds: Sequence[BatchSpeed]) -> int:
    """The largest size that pays, by the measured times."""
    best = None
    for each in speeds:
        if best is None or best.queries_per_s < each.queries_per_s * _PAYS:
            best = each
    return best.size if best else 1
