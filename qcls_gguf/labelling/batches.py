"""Distinct queries to answers, several in a decode: the next decodes are planned while one computes.

How many queries a decode should have is measured on a sample of them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from time import perf_counter, perf_counter_ns

from ..core.core import TokenizedItem
from ..core.handle import PromptHandle
from ..core.queue import Job
from ..engine.capacity import MOST_TOGETHER, N_UNTIL_CAPTURED
from ..errors import PlanError, ScoreError
from ..score.result import Result

Batch = list[tuple[int, TokenizedItem]]
"""queries with their places among all queries that are labelled"""
_N_AHEAD = 2
"""decodes that are planned while one computes"""
_N_MEASURED = 64
_MOST_S = 6.0
_GAIN = 0.97
"""of the time of fewer queries a decode: a smaller gain is within the noise of such a short measurement"""


def pays_to_pad(handle: PromptHandle) -> bool:
    """Whether padding decodes to a few token counts, so that shapes repeat, saves time."""
    # On an H100 (8B shape) decodes that were mostly the first of their shape reached 40 to 50 % of the rate of repeated
    # ones, because their graphs were built and captured first. On a CPU a new graph costs 2 %, less than the padding.
    return handle.core.engine.model.n_gpu_layers > 0


class BatchLabeller:
    """Labels many queries on a classifier without other users; it plans decodes ahead itself."""

    def __init__(self, handle: PromptHandle, size: int) -> None:
        """size: queries of a decode."""
        self._handle, self._size = handle, size
        # never padded one by one, where results must equal those of `classify`
        self._padded = size > 1 and pays_to_pad(handle)

    def label(self, queries: Sequence[str]) -> Iterator[list[tuple[int, Result | str]]]:
        """Yields the results with the queries' places, or the reasons why queries have none, decode by decode, in any
        order.
        """
        running: deque[tuple[Batch, Job[list[Result]]]] = deque()
        refused: list[tuple[int, Result | str]] = []
        try:
            for batch in self._batches(queries, refused):
                for asked in self._asked(batch):
                    running.append(asked)
                    if len(running) > _N_AHEAD:
                        yield self._results(*running.popleft())
            while running:
                yield self._results(*running.popleft())
        finally:
            for _, job in running:
                job.is_given_up = True
        if refused:
            yield refused

    def ordered(self, queries: Sequence[str]) -> list[int]:
        """The order in which queries go into decodes.

        Queries that begin alike stand together, because a decode computes their common tokens once; one by one, those
        of one length, because their decodes have one shape.
        """
        by_length = self._size == 1
        return sorted(range(len(queries)), key=lambda at: (len(queries[at]), "") if by_length else (0, queries[at]))

    def _batches(self, queries: Sequence[str], refused: list[tuple[int, Result | str]]) -> Iterator[Batch]:
        batch: Batch = []
        for place in self.ordered(queries):
            try:
                batch.append((place, self._handle.tokenize(queries[place])))
            except PlanError as e:
                refused.append((place, str(e)))
            if len(batch) == self._size:
                yield batch
                batch = []
        if batch:
            yield batch

    def _asked(self, batch: Batch) -> Iterator[tuple[Batch, Job[list[Result]]]]:
        """Submit a batch as one decode or, if it does not fit, as its halves, quarters, …

        Halves rather than as many queries as fit, because their number is part of a decode's shape.
        """
        tokenized = [item for _, item in batch]
        plan = self._handle.core.plan(tokenized, pads=self._padded)
        if len(batch) > 1 and len(plan) > 1:
            middle = len(batch) // 2
            yield from self._asked(batch[:middle])
            yield from self._asked(batch[middle:])
        else:
            yield batch, self._handle.core.submit(tokenized, plan)

    def _results(self, batch: Batch, job: Job[list[Result]]) -> list[tuple[int, Result | str]]:
        places = [place for place, _ in batch]
        queries = [item.query for _, item in batch]
        try:
            return list(zip(places, job.result(), strict=True))
        except (PlanError, ScoreError):  # it does not say of which query
            return list(zip(places, map(self._one, queries), strict=True))

    def _one(self, query: str) -> Result | str:
        try:
            return self._handle.classify(query)
        except (PlanError, ScoreError) as e:
            return str(e)


def fastest_size(handle: PromptHandle, queries: Sequence[str], most: int = MOST_TOGETHER) -> int:
    """How many of 1, 2, 4, … queries in a decode label some of the queries fastest; the sizes take turns.

    All sizes take blocks of queries in the order of a run with several in a decode. Stops after some seconds. If
    decodes are padded, a block is timed only when its shapes are known to the device, like those of most decodes of a
    run. It is 1, unmeasured, if a query takes seconds.
    """
    some = queries[:_N_MEASURED]
    some = [some[place] for place in BatchLabeller(handle, MOST_TOGETHER).ordered(some)]
    most = _most_in_time(handle, sorted(some, key=len)[len(some) // 2], min(most, len(some)))
    if most < 2:
        return 1
    sizes = [2**power for power in range(most.bit_length())]
    blocks = [some[start : start + sizes[-1]] for start in range(0, len(some) - sizes[-1] + 1, sizes[-1])]
    n_untimed = N_UNTIL_CAPTURED if pays_to_pad(handle) else 0
    times_ns: Counter[int] = Counter()
    began = perf_counter()
    for round_, block in enumerate([*blocks[:1], *blocks]):  # the first one warms up
        for size in sizes:
            labeller = BatchLabeller(handle, size)
            for _ in range(n_untimed):
                deque(labeller.label(block), maxlen=0)
            start_ns = perf_counter_ns()
            deque(labeller.label(block), maxlen=0)
            times_ns[size] += (perf_counter_ns() - start_ns) * (round_ > 0)
        if round_ and perf_counter() - began > _MOST_S:
            break
    best = 1
    for size in sizes:
        if times_ns[size] < times_ns[best] * _GAIN:
            best = size
    return best


def _most_in_time(handle: PromptHandle, query: str, most: int) -> int:
    """The largest size, at most `most`, up to which two rounds of all sizes take about twice _MOST_S; discards the
    answers.
    """
    for _ in range(2):  # the first one warms up
        began = perf_counter()
        deque(BatchLabeller(handle, 1).label([query]), maxlen=0)
        seconds = perf_counter() - began
    while most > 1 and seconds * most * most.bit_length() > _MOST_S:
        most //= 2
    return most
