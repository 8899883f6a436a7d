"""Distinct queries to answers: tokenised and planned by one thread while another one's decode computes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from ..config.schema import Config
from ..decodes import Tokenized
from ..errors import DecodeError, PlanError, ScoreError
from ..loaded_prompts import Answering
from ..pipeline import Prepared
from ..prompts.prompt_set import PromptSet
from ..score.result import Result
from ..system.threads import start

MOST = 32
"""Queries of a decode: on a GPU a forward over so many is bound by arithmetic, whatever is added"""
_N_AHEAD = 2
_STATES_BYTES = 2 << 30
"""of the states of a decode's sequences, where nobody asked for so many queries in one"""


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


def most_queries(prompts: PromptSet, state_bytes: int) -> int:
    """Queries of a decode at most: fewer where recurrent layers keep state_bytes of each of many sequences."""
    if not state_bytes:
        return MOST
    n_leaves = sum(prompt.trie.n_leaves for prompt in prompts.prompts)
    return max(1, min(MOST, _STATES_BYTES // (n_leaves * state_bytes)))


def sort_key(prompts: Answering, size: int) -> Callable[[str], str | int]:
    """By what queries are sorted before they go into decodes of this size.

    Queries that begin alike stand together: a decode computes what they have in common once. One by one, those of one
    length do, whose decodes have one shape; and so they do always with a model with states, which computes sequences of
    one length together.
    """
    return len if size == 1 or prompts.has_states else str


def sharing(config: Config, n: int) -> Config:
    """The configuration with room for so many queries in a decode; none is kept, as hardly one begins like the last."""
    runtime = replace(config.runtime, max_batch=max(config.runtime.max_batch, n), kept_queries=0)
    return replace(config, runtime=runtime)


class BatchLabeller:
    """Labels many queries with a classifier that nobody else asks meanwhile."""

    def __init__(self, prompts: Answering, size: int, *, on_rungs: bool | None = None) -> None:
        """size: queries of one decode; of queries too long for one it holds half as many, or a quarter, ….

        on_rungs: whether decodes are filled up, so that shapes repeat; None: where that pays, but not
        one by one, which is to compute what `classify` does.
        """
        self._prompts = prompts
        self._size = size
        self._on_rungs = size > 1 and prompts.pays_on_rungs if on_rungs is None else on_rungs

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
        start(thread, DecodeError, "to plan decodes")
        try:
            while (found := made.get()) is not None:
                if isinstance(found, BaseException):
                    raise found
                yield found if isinstance(found, list) else self._answers(found)
        finally:
            stop.set()
            thread.join()

    def _prepared(self, queries: Sequence[str]) -> Iterator[_Batch | list[Answered]]:
        """Batches of queries, and by themselves those that are refused."""
        batch: list[tuple[int, Tokenized]] = []
        key = sort_key(self._prompts, self._size)
        for place in sorted(range(len(queries)), key=lambda at: key(queries[at])):
            try:
                batch.append((place, self._prompts.tokenize(queries[place])))
            except PlanError as e:
                yield [Answered(place, None, str(e))]
            if len(batch) == self._size:
                yield from self._plans(batch)
                batch = []
        if batch:
            yield from self._plans(batch)

    def _plans(self, batch: Sequence[tuple[int, Tokenized]]) -> Iterator[_Batch]:
        places = iter([place for place, _ in batch])
        for part, prepared in parts_of(self._prompts, [each for _, each in batch], on_rungs=self._on_rungs):
            yield _Batch(list(islice(places, len(part))), [each.item[1] for each in part], prepared)

    def _answers(self, batch: _Batch) -> list[Answered]:
        try:
            results = results_of(self._prompts, batch.queries, batch.prepared)
        except (PlanError, ScoreError):  # it does not say of which query
            return [self._alone(place, query) for place, query in zip(batch.places, batch.queries, strict=True)]
        return [Answered(place, result) for place, result in zip(batch.places, results, strict=True)]

    def _alone(self, place: int, query: str) -> Answered:
        try:
            return Answered(place, self._prompts.classify(query))
        except (PlanError, ScoreError) as e:
            return Answered(place, None, str(e))


def parts_of(
    prompts: Answering, batch: Sequence[Tokenized], *, on_rungs: bool
) -> Iterator[tuple[Sequence[Tokenized], Prepared | None]]:
    """A batch in parts of one decode each, where a single query does not take several; and what to compute for each.

    Halves rather than as many queries as fit: their number is part of a decode's shape.
    """
    prepared = prepared_batch(prompts, batch, on_rungs=on_rungs)
    if len(batch) > 1 and not is_one_decode(prepared):
        middle = len(batch) // 2
        yield from parts_of(prompts, batch[:middle], on_rungs=on_rungs)
        yield from parts_of(prompts, batch[middle:], on_rungs=on_rungs)
    else:
        yield batch, prepared


def is_one_decode(prepared: Prepared | None) -> bool:
    """Whether one decode holds a batch, as far as is known."""
    return prepared is None or prepared.n_decodes == 1


def prepared_batch(prompts: Answering, tokenized: Sequence[Tokenized], *, on_rungs: bool) -> Prepared | None:
    """What is to be computed for a batch; nothing where the classifier's steps cannot be taken apart."""
    return prompts.prepare(tokenized, on_rungs=on_rungs) if prompts.has_steps else None


def results_of(prompts: Answering, queries: Sequence[str], prepared: Prepared | None) -> list[Result]:
    """The answers to a batch, in one decode where it is prepared so."""
    return prompts.classify_batch(queries) if prepared is None else prompts.compute(prepared)
