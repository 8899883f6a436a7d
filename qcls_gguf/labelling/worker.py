"""Labels shards with one classifier: reading the next and writing the last one beside the decodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Self, get_args

import numpy as np

from ..bench.roofline import Roofline, decode_weights, probe_device
from ..config.schema import Config
from ..engine.cores import threads
from ..engine.open import context_memory
from ..errors import ConfigError, QclsError
from ..model import Vocabulary
from ..model.header import read_header
from ..model.placement import device_index
from ..native import ContextMemory
from ..opening import ClassifierOpener
from ..prompts.chat import render_prompts
from ..prompts.prompt_set import compile_prompts
from ..report.environment import environment
from ..report.machine import peak_rss_bytes
from .answers import AnswerColumns, Answers, answer_table, probabilities_of, prompt_labels
from .batches import MOST, BatchLabeller, most_queries, sharing
from .blocks import Block, read_block
from .cache import AnswerCache
from .counts import answers_digest, shard_counts
from .inputs import Format, check_unchanged
from .job import AnyTask, Done, Filled, Frequent, Job, OnMessage, Ready, Speeds, Step, Task
from .records import BatchSpeed
from .speeds import best_size, measure_batches
from .writing import write_block

_N_SAMPLED = 2000


class Worker:
    """One classifier that labels shard after shard."""

    def __init__(self, job: Job, opener: ClassifierOpener, on_message: OnMessage) -> None:
        """on_message: is told that the worker is ready, what was measured, and how far it has come.

        Raises what Classifier.from_config raises, and ConfigError for a cache that cannot be used.
        """
        self._job = job
        self._tell = on_message
        self._speeds = None if job.batch is None else Speeds(batch=job.batch)
        with ExitStack() as stack:
            most = job.batch or _most_queries(job.config, opener)
            self._classifier = stack.enter_context(opener.open(sharing(job.config, most)))
            prompts = self._classifier.configured
            self.columns = AnswerColumns(
                prompts=prompt_labels(prompts), prefix=job.prefix, scores=job.scores, top_k=job.top_k
            )
            self.ready = Ready(
                model=self._classifier.model,
                environment=environment(self._classifier.config, self._classifier.model),
                prompts=self.columns.prompts,
                digest=answers_digest(
                    prompts.active.prompts.digest, repr(prompts.adjustments), self._classifier.config
                ),
                warnings=tuple(map(str, opener.warnings)),
            )
            on_message(self.ready)
            self._cache = None
            if job.cache is not None:
                digest = f"{self.ready.digest} {self.ready.model.sha256}"
                self._cache = stack.enter_context(AnswerCache(job.cache, digest, self.columns.n_labels))
            self._pool = stack.enter_context(ThreadPoolExecutor(2, "qcls-gguf files"))
            self._stack = stack.pop_all()

    def use(self, speeds: Speeds) -> None:
        """Take the size of batches that was measured before."""
        self._speeds = speeds

    def label(self, tasks: Iterable[AnyTask]) -> Iterator[Done | Filled]:
        """Label shards; each is told of when its file has its name. Raises QclsError, with those before it done."""
        waiting = iter(tasks)
        written: Future[Done] | None = None
        try:
            reading = self._read_next(waiting)
            while reading is not None:
                task, future = reading
                began = perf_counter()
                if isinstance(task, Frequent):
                    self._fill_cache(task.queries)
                    reading = self._read_next(waiting)
                    yield Filled(n_queries=len(task.queries))
                    continue
                assert future is not None
                block = future.result()
                reading = self._read_next(waiting)
                answers = Answers(
                    self.columns.prompts, len(block.queries.texts), keeps_scores=self.columns.keeps_scores
                )
                found: list[int] = []
                for _ in self._answered(block, task, answers, found):
                    if written is not None and written.done():  # noted at once, so that a kill loses no more
                        done, written = written.result(), None
                        yield done
                if written is not None:
                    done, written = written.result(), None
                    yield done
                written = self._pool.submit(self._write, task, block, answers, len(found), began)
            if written is not None:
                done, written = written.result(), None
                yield done
        except GeneratorExit:  # nobody asks any more
            raise
        except BaseException:
            if written is not None:
                yield written.result()  # what is done stays done
            raise

    def _read_next(self, waiting: Iterator[AnyTask]) -> tuple[AnyTask, Future[Block] | None] | None:
        """Begin to read the next shard."""
        task = next(waiting, None)
        if task is None or isinstance(task, Frequent):
            return None if task is None else (task, None)
        return task, self._pool.submit(self._read, task)

    def _fill_cache(self, queries: Sequence[str]) -> None:
        answers = Answers(self.columns.prompts, len(queries), keeps_scores=False)
        found: list[int] = []
        n_found = 0
        for n in self._fill(queries, answers, found):
            self._tell(Step(n_queries=0, n_computed=n - len(found) + n_found, n_rows=0.0))
            n_found = len(found)

    def _read(self, task: Task) -> Block:
        shard = task.shard
        check_unchanged(Path(shard.path), task.planned.stamp)
        added = self.columns.schema().names
        block = read_block(shard, self._job.column, task.planned.schema, added)
        check_unchanged(Path(shard.path), task.planned.stamp)
        return block

    def _answered(self, block: Block, task: Task, answers: Answers, found: list[int]) -> Iterator[None]:
        """Answer a shard's queries, some at a time."""
        queries = block.queries
        if self._job.strict and queries.reasons:
            raise ConfigError(f"{task.shard.path}: {queries.reasons[min(queries.reasons)]}")
        per_query = task.shard.n_kept / len(queries.texts) if queries.texts else 0.0
        n_found = 0
        for n in self._fill(queries.texts, answers, found):
            self._tell(Step(n_queries=n, n_computed=n - len(found) + n_found, n_rows=n * per_query))
            n_found = len(found)
            if self._job.strict and answers.reasons:
                place = min(answers.reasons)
                row = int(np.flatnonzero(queries.index == place)[0])
                raise ConfigError(f"{task.shard.path}: {queries.name(row)}: {answers.reasons[place]}")
            yield

    def _fill(self, texts: Sequence[str], answers: Answers, found: list[int]) -> Iterator[int]:
        """Answer queries from the cache, then by the model; gives how many at a time. found: gets the former."""
        missing: Sequence[int] = range(len(texts))
        if self._cache is not None and texts:
            known = self._cache.find(texts)
            for place, text in enumerate(texts):
                if text in known:
                    answers.put(place, *known[text])
                    found.append(place)
            missing = [place for place in missing if texts[place] not in known]
            if found:
                yield len(found)
        if not missing:
            return
        labeller = BatchLabeller(self._classifier.configured, self._batch([texts[place] for place in missing]))
        for batch in labeller.label([texts[place] for place in missing]):
            kept = []
            for each in batch:
                place = missing[each.place]
                if each.result is None:
                    answers.reasons[place] = each.reason
                    continue
                probabilities, abstained = probabilities_of(each.result)
                answers.put(place, probabilities, abstained)
                kept.append((texts[place], probabilities, abstained))
            if self._cache is not None and kept:
                self._cache.add(kept)
            yield len(batch)

    def _batch(self, queries: Sequence[str]) -> int:
        if self._speeds is None:
            measured = measure_batches(self._classifier.configured, _sample(queries))
            self._speeds = Speeds(batch=best_size(measured), measured=tuple(measured))
            if self._job.compare and measured:
                self._speeds = self._compared(measured)
            self._tell(self._speeds)
        return self._speeds.batch

    def _compared(self, measured: Sequence[BatchSpeed]) -> Speeds:
        """The same with what the device could do for batches of the best size."""
        size = best_size(measured)
        speed = next(each for each in measured if each.size == size)
        classifier = self._classifier
        if not classifier.has_steps:
            return Speeds(batch=size, measured=tuple(measured), roofline_error="not known of a cascade")
        model = classifier.engine.model
        weights = decode_weights(model, head=classifier.configured.active.prompts.exact)
        index = device_index(model.placement)
        try:
            n_threads = threads(classifier.config.runtime).n
            rates = probe_device(index, n_threads=n_threads, ggml_type=weights.ggml_type)
        except QclsError as e:
            return Speeds(batch=size, measured=tuple(measured), roofline_error=str(e))
        n_tokens = speed.n_tokens / speed.n_queries * size
        ms = Roofline(weights=weights, rates=rates).ms(n_tokens=n_tokens, n_rows=size * len(self.columns.prompts))
        return Speeds(batch=size, measured=tuple(measured), roofline_per_s=None if ms is None else 1e3 * size / ms)

    def _write(self, task: Task, block: Block, answers: Answers, n_found: int, began: float) -> Done:
        queries, shard = block.queries, task.shard
        table = answer_table(self.columns, queries, answers)
        format_ = self._job.format or shard.format
        assert format_ in get_args(Format)
        n_bytes = write_block(self._job.folder / task.output, block, table, format_)  # type: ignore[arg-type]
        counts = shard_counts(task, queries, answers, n_bytes=n_bytes, n_found=n_found, seconds=perf_counter() - began)
        return Done(task=task, counts=counts, peak_memory_bytes=peak_rss_bytes())

    def close(self) -> None:
        """Close the classifier and the cache."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _most_queries(config: Config, opener: ClassifierOpener) -> int:
    """Queries of a decode at most. The model is opened here only where its states may be large."""
    if not read_header(opener.models.path_of(config)).may_have_states:
        return MOST

    def most(model: Vocabulary) -> int:
        texts = render_prompts(config.prompts, model, config.model).prompts
        return most_queries(compile_prompts(texts, model), model.facts.state_bytes)

    def measure(model: Vocabulary) -> ContextMemory:
        return context_memory(sharing(config, most(model)))(model)

    return most(opener.models.of(config, measure=measure))


def _sample(queries: Sequence[str]) -> Sequence[str]:
    """Some queries spread over all."""
    step = max(1, len(queries) // _N_SAMPLED)
    return queries[::step]
