"""Answers of distinct queries: how they are asked for, the columns that they fill, and the file that keeps them."""

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..config.prompt import PromptConfig
from ..core.core import TokenizedItem
from ..core.handle import PromptHandle
from ..core.queue import Job
from ..errors import PlanError, ScoreError
from ..score.result import Result
from ..statistics import FloatArray
from ..system.lifetimes import Closing
from .blocks import Queries, distinct_queries, written

KEPT = ".answers"
"""the end of the name of that file"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerColumns:
    """The columns that the output gets."""

    prompts: tuple[PromptConfig, ...]
    """the names of the prompts"""
    prefix: str = ""
    """before their names"""
    scores: bool = False
    """also every label's probability"""

    @property
    def ends(self) -> list[int]:
        """Where the labels of the prompts end in a list of the labels of all."""
        return list(accumulate(len(prompt.labels) for prompt in self.prompts))

    def schema(self) -> pa.Schema:
        """The columns and their types."""
        return Answers(self, 0).table(distinct_queries([], "row", [])).schema


@dataclass(frozen=True, slots=True)
class Answer:
    """What is kept of a result."""

    probabilities: FloatArray
    """(n_labels,) of every label, prompt by prompt"""
    abstained: Sequence[bool]
    """prompt by prompt"""
    is_cut: bool
    """whether a part of the query was left out, because it was too long"""


def answer_of(result: Result) -> Answer:
    """What is kept of a result."""
    probabilities = [score.probability for answer in result.results for score in answer.scores]
    return Answer(np.array(probabilities), [answer.abstained for answer in result.results], result.n_chars_cut > 0)


class Answers:
    """The answers to distinct queries, filled one by one."""

    def __init__(self, columns: AnswerColumns, n: int) -> None:
        self.columns = columns
        shape = n, len(columns.prompts)
        self.label = np.full(shape, -1, np.int32)
        """(n, n_prompts) by number, the fallback after all labels; -1: no answer"""
        self.probability = np.full(shape, np.nan)
        """(n, n_prompts) of the most probable label"""
        self.scores = np.full((n, columns.ends[-1] if columns.scores else 0), np.nan)
        """(n, n_labels) every label's probability, prompt by prompt; (n, 0) where no column needs them"""
        self.is_cut = np.zeros(n, bool)
        """(n,) whether a part of the query was left out"""
        self.reasons: dict[int, str] = {}
        """why a query has no answer"""
        self.n_found = 0
        """of those with an answer, the number of which it was known before"""

    def put(self, place: int, answer: Answer | str) -> None:
        """Keep the answer to a query, or the reason why it has none."""
        if isinstance(answer, str):
            self.reasons[place] = answer
            return
        self.is_cut[place] = answer.is_cut
        for number, own in enumerate(np.split(answer.probabilities, self.columns.ends[:-1])):
            best = int(own.argmax())  # the first of equally probable ones, as in a Result
            self.label[place, number] = len(own) if answer.abstained[number] else best
            self.probability[place, number] = own[best]
        if self.columns.scores:
            self.scores[place] = answer.probabilities

    def failures(self, queries: Queries) -> dict[int, str]:
        """The reasons of rows whose query has no answer."""
        rows = np.flatnonzero(np.isin(queries.index, list(self.reasons))).tolist() if self.reasons else []
        return {row: f"{queries.unit} {queries.numbers[row]}: {self.reasons[int(queries.index[row])]}" for row in rows}

    def table(self, queries: Queries, digits: int | None = None) -> pa.Table:
        """The columns that the rows get; digits: of probabilities after the point, None: all."""
        index = queries.index
        names, arrays = zip(*self._columns(digits), strict=True)
        if queries.texts:
            place = pa.array(np.maximum(index, 0), mask=index < 0)
            arrays = tuple(array.take(place) for array in arrays)
        else:  # there is nothing to take from
            arrays = tuple(pa.nulls(len(index), array.type) for array in arrays)
        reasons = queries.reasons | self.failures(queries)
        errors = pa.array([reasons.get(row) for row in range(len(index))], pa.string())
        return pa.Table.from_arrays([*arrays, errors], [*names, f"{self.columns.prefix}error"])

    def _columns(self, digits: int | None) -> Iterator[tuple[str, pa.Array]]:
        """Of the distinct queries, without the reasons."""
        probability, scores, columns = self.probability, self.scores, self.columns
        if digits is not None:
            probability, scores = probability.round(digits), scores.round(digits)
        own_scores = np.split(scores, columns.ends[:-1], axis=1)
        for number, (prompt, own) in enumerate(zip(columns.prompts, own_scores, strict=True)):
            name = f"{columns.prefix}{prompt.name}"
            names, label = pa.array([*prompt.labels, prompt.fallback or ""], pa.string()), self.label[:, number]
            none = pa.array(label < 0)
            yield name, names.take(pa.array(label, mask=label < 0))
            yield f"{name}_probability", pc.if_else(none, None, pa.array(probability[:, number]))
            if columns.scores:
                found = pa.StructArray.from_arrays(list(map(pa.array, own.T)), names=list(prompt.labels))
                yield f"{name}_scores", pc.if_else(none, pa.scalar(None, found.type), found)


class KeptAnswers(Closing):
    """The answers of an unfinished shard, in a file beside the output, from which a stopped run resumes.

    An answer is a line of JSON after the digest by which it is known to be whole, and of this shard.
    """

    def __init__(self, path: Path, key: bytes) -> None:
        """key: of all that the answers depend on, the queries included; answers of another key are left out. Raises
        QclsError.
        """
        self._path, self._key = path, key
        self.known: dict[int, Answer] = {}
        """by the places of the queries"""
        with written(path):
            self._file = path.open("a+b")
            self._file.seek(0)
            for line in self._file:
                check, _, text = line.rstrip().partition(b" ")
                if check == self._check(text):
                    place, probabilities, abstained, is_cut = json.loads(text)
                    self.known[place] = Answer(np.array(probabilities), abstained, is_cut)
            if not self.known:
                self._file.truncate(0)

    def add(self, answers: Mapping[int, Answer]) -> None:
        """Keep answers, by the places of their queries. Raises QclsError."""
        with written(self._path):
            for place, answer in answers.items():
                text = json.dumps([place, answer.probabilities.tolist(), answer.abstained, answer.is_cut]).encode()
                self._file.write(b"\n" + self._check(text) + b" " + text)  # after what a kill may have cut off
            self._file.flush()

    def _check(self, text: bytes) -> bytes:
        return blake2b(text, key=self._key, digest_size=8).hexdigest().encode()

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):  # of a full disk, which was told
            self._file.close()


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
