"""Labels shards with one classifier; reads the next shard and writes the last one while it decodes."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import numpy as np
import pyarrow as pa

from ..config.schema import Config
from ..config.words import digest_of
from ..core.handle import PromptHandle
from ..data.rows import PLAIN, Format, Reading
from ..opening import ClassifierOpener
from ..report.suspicions import AnswerSample
from ..system.closing import Closing
from .answers import Answer, AnswerCache, AnswerColumns, Answers, KeptAnswers, answer_of, kept_path
from .batches import MOST, BatchLabeller, best_size, measure_batches, with_room
from .blocks import Block, read_block
from .output import Task
from .records import BatchSpeed, ShardCounts, shard_counts
from .writing import DIGITS, write_block

_N_SAMPLED = 2000
WORTH_MEASURING = 2000
"""distinct queries of a shard: with fewer, the best size of batches would save less than it takes to find it"""
_UNMEASURED = 8
"""queries of a decode then"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSettings:
    """What to label, and how."""

    config: Config
    inputs: tuple[str, ...]
    """files, patterns, folders"""
    out: Path
    """a file that ends in a known ending, or a folder"""
    folder: Path = Path()
    """of the output files; a run finds it by `out`"""
    format: Format | None = None
    """of them; None: that of the input"""
    reading: Reading = PLAIN
    prefix: str = ""
    """before the names of the columns that are added"""
    scores: bool = False
    top_k: int | None = None
    cache: Path | None = None
    batch: int | None = None
    """queries of a decode; None: measured at the start"""
    shard_rows: int = 50_000
    limit: int | None = None
    """only the first rows of all inputs together"""
    part: tuple[int, int] = (1, 1)
    """(k, n): only every n-th shard of all inputs together, from the k-th on"""
    overwrite: bool = False
    """label everything anew, whatever is there"""

    @property
    def is_partial(self) -> bool:
        """Whether only some of the rows are labelled."""
        return self.limit is not None or self.part != (1, 1)


@dataclass(slots=True, kw_only=True)
class Progress:
    """The work done since some moment."""

    n_queries: int = 0
    """distinct queries of shards that were answered"""
    n_computed: int = 0
    """of these, the number that neither the cache nor a stopped run had"""
    n_rows: float = 0.0
    """the rows that they represent, evenly spread"""
    kept: str = ""
    """what a stopped run had labelled of a shard, in words"""
    measured: tuple[BatchSpeed, ...] = ()
    batch: int | None = None
    """queries of a decode, once this is known"""
    done: list[ShardCounts] = field(default_factory=list)
    """the shards whose files have their names"""

    def line(self, n_rows: int, seconds: float) -> str:
        """The progress among n_rows, as text; seconds: the time in which queries were computed."""
        rate, distinct = self.n_computed / max(seconds, 1e-9), self.n_queries / max(self.n_rows, 1)
        left = f", {duration((n_rows - self.n_rows) * distinct / rate)} left" if rate else ""
        return f"{self.n_rows:,.0f} of {n_rows:,} rows, {rate:,.1f} queries/s, {distinct:.0%} distinct{left}"

    def add(self, more: Progress) -> None:
        """Count what was done after it; what was kept, and which shards are whole, is told once."""
        self.n_queries += more.n_queries
        self.n_computed += more.n_computed
        self.n_rows += more.n_rows
        self.measured = more.measured or self.measured
        self.batch = more.batch or self.batch


def duration(seconds: float) -> str:
    """A duration in words."""
    minutes, hours = seconds / 60, seconds / 3600
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{minutes:.0f} min" if minutes < 100 else f"{hours:.1f} h" if hours < 100 else f"{hours / 24:.1f} days"


class Worker(Closing):
    """One classifier that labels shard after shard."""

    def __init__(self, settings: LabelSettings, opener: ClassifierOpener) -> None:
        """Raises what Classifier.from_config raises, and ConfigError for a cache that cannot be used."""
        self._settings = settings
        self._batch: int | None = None
        with ExitStack() as stack:
            self._most = settings.batch or MOST
            self.classifier = stack.enter_context(opener.open(with_room(settings.config, self._most)))
            self.columns = AnswerColumns(
                prompts=self.classifier.compiled.settings,
                prefix=settings.prefix,
                scores=settings.scores,
                top_k=settings.top_k,
            )
            self.digest = _answers_digest(self.classifier, self.classifier.config)
            """of all that answers depend on except the model"""
            self._digest = hashlib.sha256(f"{self.digest} {self.classifier.model.sha256}".encode()).hexdigest()
            self.sample = AnswerSample()
            """of the answers that were computed"""
            self._cache = None
            if settings.cache is not None:
                self._cache = stack.enter_context(AnswerCache(settings.cache, self._digest, self.columns.ends[-1]))
            self._pool = stack.enter_context(ThreadPoolExecutor(2, "qcls-gguf files"))
            self._stack = stack.pop_all()

    def label(self, tasks: Iterable[Task], batch: int | None) -> Iterator[Progress]:
        """Label shards, and report each batch and each finished file.

        batch: queries of a decode; None: measured with the first shard that needs it. Raises QclsError after reporting
        the files that are finished.
        """
        self._batch = batch or self._batch
        writing: deque[Future[Progress]] = deque()

        def written(*, wait: bool = True) -> Iterator[Progress]:
            while writing and (wait or writing[0].done()):
                yield writing.popleft().result()

        try:
            for task, block in self._blocks(tasks):
                began, answers = perf_counter(), Answers(self.columns, len(block.queries.texts))
                for progress in self._answer(task, block, answers):
                    yield progress
                    yield from written(wait=False)  # noted at once, so that a kill loses no more
                yield from written()
                writing.append(self._pool.submit(self._write, task, block, answers, began))
            yield from written()
        except GeneratorExit:  # the caller has stopped
            raise
        except BaseException:
            yield from written()  # what is done stays done
            raise

    def _blocks(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Block]]:
        """The rows of the shards; each shard is read while the one before is labelled."""
        before: tuple[Task, Future[Block]] | None = None
        for task in tasks:
            reading = task, self._pool.submit(self._read, task)
            if before is not None:
                yield before[0], before[1].result()
            before = reading
        if before is not None:
            yield before[0], before[1].result()

    def _read(self, task: Task) -> Block:
        task.input.check_unchanged()
        block = read_block(task.input, task.shard, self._settings.reading, self.columns.schema().names)
        task.input.check_unchanged()
        return block

    def _answer(self, task: Task, block: Block, answers: Answers) -> Iterator[Progress]:
        """Answer a shard's queries in groups: from the answers of a stopped run, from the cache, then by the model."""
        texts = block.queries.texts
        digest = hashlib.sha256("\0".join([self._digest, *texts]).encode()).digest()
        with KeptAnswers(kept_path(self._settings.folder, task.output), digest, self.columns) as kept:
            cached = self._cache.find(texts) if self._cache is not None else {}
            known = {place: cached[text] for place, text in enumerate(texts) if text in cached} | kept.found
            answers.n_found = n = len(known)
            for place, answer in known.items():
                answers.put(place, answer, is_cut=self._is_cut(texts[place]))
            n_rows, n_kept = task.shard.n_rows, int(np.isin(block.queries.index, list(kept.found)).sum())
            about = f"{task.input.path}: resumes after {n_kept:,} of {n_rows:,} rows" if n_kept else ""
            rows_per_query = n_rows / max(len(texts), 1)
            yield Progress(n_queries=n, n_rows=n * rows_per_query, kept=about)
            missing = [place for place in range(len(texts)) if place not in known]
            queries = [texts[place] for place in missing]
            if self._batch is None and len(queries) >= WORTH_MEASURING:
                measured = measure_batches(self.classifier, queries[:: max(1, len(queries) // _N_SAMPLED)])
                self._batch = best_size(measured)
                yield Progress(measured=tuple(measured))
            size = self._batch or min(_UNMEASURED, self._most)
            yield Progress(batch=size if queries else None)
            for results in BatchLabeller(self.classifier, size).label(queries):
                found: dict[int, Answer] = {}
                for at, result in results:
                    if not isinstance(result, str):
                        found[missing[at]] = answer_of(result)
                        self.sample.add(result)
                        answers.put(missing[at], found[missing[at]], is_cut=result.n_chars_cut > 0)
                    else:
                        answers.put(missing[at], result)
                kept.add(found)
                if self._cache is not None and found:
                    self._cache.add({texts[place]: answer for place, answer in found.items()})
                n = len(results)
                yield Progress(n_queries=n, n_computed=n, n_rows=n * rows_per_query)

    def _is_cut(self, text: str) -> bool:
        """Whether only a part of a query that has an answer is labelled."""
        refuses = self.classifier.config.runtime.long_queries == "refuse"
        return not refuses and self.classifier.tokenize(text).n_chars_cut > 0

    def _write(self, task: Task, block: Block, answers: Answers, began: float) -> Progress:
        format_ = self._settings.format or task.input.format
        added = answers.table(block.queries, None if format_ == "parquet" else DIGITS)
        for name, value in reversed(task.input.partition.items()):
            added = added.add_column(0, name, pa.array([value] * added.num_rows, pa.string()))
        n_bytes = write_block(self._settings.folder / task.output, block, added, format_, header=task.header)
        kept_path(self._settings.folder, task.output).unlink(missing_ok=True)
        seconds = perf_counter() - began
        counts = shard_counts(task.input.path, task.output, block.queries, answers, n_bytes=n_bytes, seconds=seconds)
        return Progress(done=[counts])

    def close(self) -> None:
        """Close the classifier and the cache."""
        self._stack.close()


def _answers_digest(prompts: PromptHandle, config: Config) -> str:
    """A sha256 of everything that answers depend on except the model: prompts, calibration, and limits of queries."""
    names = ("max_query_tokens", "long_queries", "query_tokens", "kv_type", "cpu_activations")
    settings = [[name, getattr(config.runtime, name)] for name in names]
    return digest_of([prompts.compiled.digest, repr(prompts.adjustments), settings])
