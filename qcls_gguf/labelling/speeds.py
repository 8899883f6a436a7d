"""How many queries a decode should have: measured on a sample of them before the first decode that counts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from time import perf_counter

from ..decodes import Tokenized
from ..engine.capacity import N_UNTIL_CAPTURED
from ..errors import QclsError
from ..loaded_prompts import Answering
from ..pipeline import Prepared
from .batches import MOST, is_one_decode, parts_of, prepared_batch, results_of, sort_key
from .records import BatchSpeed

_N_MEASURED = 64
_MOST_S = 6.0
_PAYS = 0.97
"""of the time of fewer queries a decode: a smaller gain is within the noise of such a short measurement"""


def measure_batches(prompts: Answering, queries: Sequence[str], most: int = MOST) -> list[BatchSpeed]:
    """How fast some of the queries are labelled one by one and 2, 4, 8, … in a decode; the sizes run in turns.

    All sizes, one by one too, take the queries in the order of a run with several in a decode. Batches that a decode
    does not hold are halved, as in a run; sizes of which these are most are left out. Stops after some seconds, with
    the sizes that were measured. Where decodes are filled up to one of a few token counts, those of each shape (queries
    and tokens) are timed once the shape is known to the device, as it is to most decodes of a run.
    """
    usable = _usable(prompts, queries)
    sizes = [1]
    while sizes[-1] * 2 <= min(most, len(usable)):
        sizes.append(sizes[-1] * 2)
    turns = _Turns(prompts)
    blocks = [usable[start : start + sizes[-1]] for start in range(0, len(usable), sizes[-1])]
    sizes = [size for size in sizes if size == 1 or turns.mostly_whole(_parts(blocks[0], size))]
    began = perf_counter()
    for round_, block in enumerate([blocks[0], *blocks] if usable else []):  # the first one warms up
        for size in sizes:
            for part in _parts(block, size):
                turns.take(part, counts=round_ > 0)
        if round_ and perf_counter() - began > _MOST_S:
            break
    return [turns.speed(size) for size in sizes if turns.n_queries[size]]


def _usable(prompts: Answering, queries: Sequence[str]) -> list[Tokenized]:
    """Some of the queries, in the order of a run with several in a decode."""
    usable = []
    for query in queries:
        try:
            usable.append(prompts.tokenize(query))
        except QclsError:
            continue
        if len(usable) == _N_MEASURED:
            break
    key = sort_key(prompts, MOST)
    return sorted(usable, key=lambda each: key(each.item[1]))


def _parts(block: Sequence[Tokenized], size: int) -> list[Sequence[Tokenized]]:
    """Batches of one size; what is left behind the last one goes."""
    return [block[start : start + size] for start in range(0, len(block) - size + 1, size)]


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

    def mostly_whole(self, parts: Sequence[Sequence[Tokenized]]) -> bool:
        """Whether a decode holds most of some batches; nothing is computed."""
        n_whole = sum(is_one_decode(prepared_batch(self._prompts, part, on_rungs=self._on_rungs)) for part in parts)
        return 2 * n_whole > len(parts)

    def take(self, batch: Sequence[Tokenized], *, counts: bool) -> None:
        """Compute a batch as a run does, in parts where a decode does not hold it."""
        size = len(batch)
        on_rungs = self._on_rungs and size > 1
        for part, prepared in parts_of(self._prompts, batch, on_rungs=on_rungs):
            self._take_part(part, prepared, size, on_rungs=on_rungs, counts=counts)

    def _take_part(
        self, part: Sequence[Tokenized], prepared: Prepared | None, size: int, *, on_rungs: bool, counts: bool
    ) -> None:
        shape = len(part), 0 if prepared is None else prepared.n_tokens
        queries = [each.item[1] for each in part]
        for _ in range(self._n_untimed - self._seen[shape]):
            results_of(self._prompts, queries, prepared_batch(self._prompts, part, on_rungs=on_rungs))
        self._seen[shape] = self._n_untimed
        began = perf_counter()
        results = results_of(self._prompts, queries, prepared)
        if counts:
            self._seconds[size] += perf_counter() - began
            self.n_queries[size] += len(part)
            self._n_tokens[size] += results[0].counts.n_tokens_new

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
