"""Distinct queries to answers: tokenised and planned by one thread while another one's decode computes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from ..config.schema import Config
from ..errors import PlanError, QclsError, ScoreError
from ..loaded_prompts import Answering
from ..pipeline import Prepared, Tokenized
from ..score.result import Result
from .records import BatchSpeed

MOST = 32
"""Queries of a decode: on a GPU a forward over so many is bound by arithmetic, whatever is added"""
_N_MEASURED = 88
_MOST_S = 6.0
_PAYS = 0.97
"""of the time of fewer queries a decode: a smaller gain is within the noise of such a short measurement"""
_WINDOW = 64
"""batches among whose queries those of one length are brought together"""
_N_AHEAD = 2


@dataclass(frozen=True, slots=True)
class Answered:
    """A query's answer, or the reason why it has none."""

    place: int
    """in the sequence that was given"""
    result: Result | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Batch:
    places: Sequence[int]
    queries: Sequence[str]
    prepared: Prepared | None
    """none where the classifier's steps cannot be taken apart"""


def sharing(config: Config, n: int) -> Config:
    """The configuration with room for so many queries in a decode."""
    return replace(config, runtime=replace(config.runtime, max_batch=max(config.runtime.max_batch, n)))


class BatchLabeller:
    """Labels many queries with a classifier that nobody else asks meanwhile."""

    def __init__(self, prompts: Answering, size: int) -> None:
        """size: queries of one decode; of longer queries it holds fewer, by their tokens."""
        self._prompts = prompts
        self._size = size
        self._budget: int | None = None

    def label(self, queries: Sequence[str]) -> Iterator[list[Answered]]:
        """Answers to all queries, a decode's at a time, in no particular order."""
        made: queue.Queue[_Batch | list[Answered] | BaseException | None] = queue.Queue(_N_AHEAD)
        stop = threading.Event()

        def put(item: _Batch | list[Answered] | BaseException | None) -> None:
            while not stop.is_set():
                try:
                    made.put(item, timeout=0.1)
                    return
                except queue.Full:
                    pass

        def prepare() -> None:
            try:
                for each in self._prepared(queries):
                    if stop.is_set():
                        return
                    put(each)
                put(None)
            except BaseException as e:  # it is raised where the answers are asked for
                put(e)

        thread = threading.Thread(target=prepare, name="qcls-gguf batches", daemon=True)
        thread.start()
        try:
            while (found := made.get()) is not None:
                if isinstance(found, BaseException):
                    raise found
                yield found if isinstance(found, list) else self._answers(found)
        finally:
            stop.set()
            thread.join()

    def _prepared(self, queries: Sequence[str]) -> Iterator[_Batch | list[Answered]]:
        """Batches of queries of about one length, and by themselves those that are refused."""
        # Those of one length behind one another: a decode of another shape than the last ones has its graph built anew.
        places = sorted(range(len(queries)), key=lambda place: len(queries[place]))
        n = _WINDOW * self._size
        for start in range(0, len(places), n):
            refused: list[Answered] = []
            tokenized: list[tuple[int, Tokenized]] = []
            for place in places[start : start + n]:
                try:
                    tokenized.append((place, self._prompts.tokenize(queries[place])))
                except PlanError as e:
                    refused.append(Answered(place, None, str(e)))
            if refused:
                yield refused
            tokenized.sort(key=lambda each: each[1].n_tokens)
            yield from self._cut(tokenized)

    def _cut(self, tokenized: Sequence[tuple[int, Tokenized]]) -> Iterator[_Batch]:
        """Batches of at most so many queries as usual ones of these fill the budget of tokens with."""
        if not tokenized:
            return
        if self._budget is None:
            middle = tokenized[len(tokenized) // 2][1].n_tokens
            self._budget = self._size * middle
        batch: list[tuple[int, Tokenized]] = []
        n_tokens = 0
        for place, each in tokenized:
            if batch and (len(batch) == self._size or n_tokens + each.n_tokens > 2 * self._budget):
                yield from self._plans(batch)
                batch, n_tokens = [], 0
            batch.append((place, each))
            n_tokens += each.n_tokens
        yield from self._plans(batch)

    def _plans(self, batch: Sequence[tuple[int, Tokenized]]) -> Iterator[_Batch]:
        """One decode each, where a single query does not take several."""
        prepared = _prepared(self._prompts, [each for _, each in batch])
        if prepared is not None and prepared.n_decodes > 1 and len(batch) > 1:
            middle = len(batch) // 2
            yield from self._plans(batch[:middle])
            yield from self._plans(batch[middle:])
        else:
            yield _Batch([place for place, _ in batch], [each.item[1] for _, each in batch], prepared)

    def _answers(self, batch: _Batch) -> list[Answered]:
        try:
            results = _results(self._prompts, batch.queries, batch.prepared)
        except (PlanError, ScoreError):  # it does not say of which query
            return [self._alone(place, query) for place, query in zip(batch.places, batch.queries, strict=True)]
        return [Answered(place, result) for place, result in zip(batch.places, results, strict=True)]

    def _alone(self, place: int, query: str) -> Answered:
        try:
            return Answered(place, self._prompts.classify(query))
        except (PlanError, ScoreError) as e:
            return Answered(place, None, str(e))


def _prepared(prompts: Answering, tokenized: Sequence[Tokenized]) -> Prepared | None:
    return prompts.prepare(tokenized) if prompts.has_steps else None


def _results(prompts: Answering, queries: Sequence[str], prepared: Prepared | None) -> list[Result]:
    return prompts.classify_batch(queries) if prepared is None else prompts.compute(prepared)


def measure_batches(prompts: Answering, queries: Sequence[str], most: int = MOST) -> list[BatchSpeed]:
    """How fast some of the queries are labelled one by one and 2, 4, 8, … in a decode; the sizes run in turns.

    Stops after some seconds, with the sizes that were measured. Sizes that need more than one decode are left out.
    """
    usable = []
    for query in queries:
        try:
            usable.append(prompts.tokenize(query))
        except QclsError:
            continue
        if len(usable) == _N_MEASURED:
            break
    usable.sort(key=lambda each: each.n_tokens)
    usable = usable[: max(1, len(usable) * 3 // 4)]  # of the longest queries a decode holds fewer
    sizes = [1]
    while sizes[-1] * 2 <= min(most, len(usable)):
        sizes.append(sizes[-1] * 2)
    spent = dict.fromkeys(sizes, 0.0)
    counted = dict.fromkeys(sizes, 0)
    tokens = dict.fromkeys(sizes, 0)
    began = perf_counter()
    blocks = [usable[start : start + sizes[-1]] for start in range(0, len(usable), sizes[-1])]
    for round_, block in enumerate([blocks[0], *blocks] if usable else []):  # the first one warms up
        for size in list(sizes):
            for start in range(0, len(block) - size + 1, size):
                part = block[start : start + size]
                prepared = _prepared(prompts, part)
                if prepared is not None and prepared.n_decodes > 1 and size > 1:
                    sizes = [each for each in sizes if each < size]
                    break
                at = perf_counter()
                results = _results(prompts, [each.item[1] for each in part], prepared)
                if round_:
                    spent[size] += perf_counter() - at
                    counted[size] += size
                    tokens[size] += results[0].counts.n_tokens_new
        if round_ and perf_counter() - began > _MOST_S:
            break
    return [
        BatchSpeed(size=size, n_queries=counted[size], n_tokens=tokens[size], queries_per_s=counted[size] / spent[size])
        for size in sizes
        if counted[size]
    ]


def best_size(speeds: Sequence[BatchSpeed]) -> int:
    """The largest size that pays, by the measured times."""
    best = None
    for each in speeds:
        if best is None or best.queries_per_s < each.queries_per_s * _PAYS:
            best = each
    return best.size if best else 1
