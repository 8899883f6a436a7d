"""Distinct queries to answers, several in a decode: the next decodes are planned while one computes."""

from collections import deque
from collections.abc import Iterator, Sequence

from ..core.core import TokenizedItem
from ..core.handle import PromptHandle
from ..core.queue import Job
from ..errors import PlanError, ScoreError
from ..score.result import Result

Batch = list[tuple[int, TokenizedItem]]
"""queries with their places among all queries that are labelled"""
_N_AHEAD = 2
"""decodes that are planned while one computes"""


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

    def _batches(self, queries: Sequence[str], refused: list[tuple[int, Result | str]]) -> Iterator[Batch]:
        batch: Batch = []
        # Queries that begin alike stand together, because a decode computes their common tokens once; one by one, those
        # of one length, because their decodes have one shape.
        by_length = self._size == 1
        key = (lambda at: (len(queries[at]), "")) if by_length else (lambda at: (0, queries[at]))
        for place in sorted(range(len(queries)), key=key):
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
