"""Labels files shard by shard with one classifier: reads the next shard and writes the last one while it decodes."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path
from time import perf_counter

import numpy as np
import pyarrow as pa

from ..config.schema import Config
from ..config.words import counted, digest_of
from ..data.rows import PLAIN, QUERY, Format, Reading, bare_name
from ..engine.capacity import MOST_TOGETHER
from ..errors import ConfigError, prefixed
from ..opening import ClassifierOpener
from ..report.environment import environment, peak_rss_bytes
from ..report.suspicions import AnswerSample
from .answers import Answer, AnswerCache, AnswerColumns, Answers, KeptAnswers, answer_of, kept_path
from .batches import BatchLabeller, best_size, measure_batches
from .blocks import DIGITS, Block, read_block, write_block
from .inputs import Input, check_names, find_inputs, first_rows, read_input
from .output import OutputFolder, RunSettings, Task
from .records import BatchSpeed, LabellingRecord, RowCounts, RunSpeed, ShardCounts, duration, shard_counts

_N_SAMPLED = 2000
WORTH_MEASURING = 2000
"""distinct queries of a shard: with fewer, the best size of batches would save less than it takes to find it"""
_UNMEASURED = 8
"""queries of a decode then"""
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSettings:
    """What to label, and how."""

    config: Config
    inputs: tuple[str, ...]
    """files, patterns, folders"""
    out: Path
    """a file that ends in a known ending, or a folder"""
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

    def run_settings(self, inputs: Sequence[Path], *, is_joined: bool) -> RunSettings:
        """Those that a resumed run must share, as far as they are known without a model."""
        # Where rows are counted over all inputs, or all become one file, there must be the same ones.
        is_partial = self.limit is not None or self.part != (1, 1)
        names = ("format", "prefix", "scores", "top_k", "shard_rows", "limit")
        return {
            **{name: getattr(self, name) for name in names},
            "query_column": self.reading.query or QUERY,
            "input_format": self.reading.format,
            "encoding": self.reading.encoding,
            "delimiter": self.reading.delimiter,
            "part": "/".join(map(str, self.part)) if self.part != (1, 1) else None,
            "inputs": [str(path) for path in inputs] if is_joined or is_partial else None,
        }


def label_files(
    settings: LabelSettings,
    opener: ClassifierOpener,
    *,
    on_progress: Tell = lambda line: None,
    on_note: Tell = lambda note: None,
) -> LabellingRecord:
    """Label the rows of some files, except what earlier runs on the same output have labelled.

    on_progress gets the progress in words; on_note what was already done, and warnings about suspicious answers. Raises
    ConfigError and the errors of Classifier.from_config before anything is labelled, and QclsError if an input or the
    output fails: finished shards stay, and the same call resumes from there.
    """
    output = OutputFolder(settings.out, settings.format, settings.part)
    settings = replace(settings, format=output.format)
    # without what an earlier run wrote into a folder of inputs
    own, found = Path(os.path.abspath(output.folder)), [Path(os.path.abspath(p)) for p in find_inputs(settings.inputs)]
    paths = [path for path in found if own not in path.parents and path != output.out.absolute()]
    if not paths:
        raise ConfigError(f"`out` {output.out}: all inputs are in it: name another output")
    with output:
        inputs = _planned(settings, output, paths, on_note)
        with ExitStack() as stack:
            run = _Run(settings, output, inputs, opener, stack, on_progress, on_note)
            totals = run.label()
            return run.record(totals, tuple(map(str, opener.warnings)))


def _planned(settings: LabelSettings, output: OutputFolder, paths: Sequence[Path], on_note: Tell) -> list[Input]:
    """The inputs with their shards; those of the manifest for inputs that have not changed."""
    known: dict[str, Input] = {}
    if not settings.overwrite:
        output.check_joined()
        output.check(settings.run_settings(paths, is_joined=output.joined is not None))
        known = {input_.path: input_ for input_ in output.manifest.inputs} if output.manifest else {}
    names = {input_.path: input_.name for input_ in known.values()}
    inputs = []
    for path in paths:
        before = known.get(str(path))
        now = before and before.refreshed()
        if before and not now:
            raise ConfigError(
                f"{path}: was changed since it was labelled ({before.stamp[1]} bytes then, {path.stat().st_size} now): "
                "name another output, or label everything again with `overwrite` (a `cache` saves work)"
            )
        if not now:
            now = read_input(path, settings.reading, settings.shard_rows, settings.format)
            n_rows = sum(shard.n_rows for shard in now.shards)
            on_note(f"{path}: {n_rows:,} rows in {counted(len(now.shards), 'shard')}, read as {now.format}")
        # its own name, numbered if another input has the same
        stem = bare_name(path).stem.lstrip(".") or "input"
        tried = chain([stem], (f"{stem}~{number}" for number in count(2)))
        name = names.setdefault(str(path), next(name for name in tried if name not in names.values()))
        inputs.append(now.model_copy(update={"name": name}))
    if (
        output.joined
        and len({(input_.columns, *input_.partition) for input_ in inputs}) > 1
        and settings.format != "jsonl"
    ):
        raise ConfigError(
            f"`out` {output.joined}: the inputs have different columns, {inputs[0].path} and others: name a folder, "
            "which gets a file for every one"
        )
    if settings.limit is not None and not known:
        inputs = first_rows(inputs, settings.limit)
    if not output.tasks(inputs):
        n_shards = sum(len(input_.shards) for input_ in inputs)
        part = "/".join(map(str, settings.part))
        raise ConfigError(f"`part` {part}: the inputs have {counted(n_shards, 'shard')} only: lower `shard_rows`")
    return inputs


class _Run:
    """The shards that are left, and what was done with them so far."""

    def __init__(
        self,
        settings: LabelSettings,
        output: OutputFolder,
        inputs: Sequence[Input],
        opener: ClassifierOpener,
        stack: ExitStack,
        on_progress: Tell,
        on_note: Tell,
    ) -> None:
        """Raises what Classifier.from_config raises, and ConfigError for a cache that cannot be used, and for columns
        that cannot be added.
        """
        self._settings, self._output, self._inputs = settings, output, inputs
        self._on_progress, self._on_note = on_progress, on_note
        self._most = settings.batch or MOST_TOGETHER
        self._chosen_batch: int | None = None
        """queries of a decode: as given, as in the run that is resumed, or as measured; None until then"""
        self._last_batch: int | None = None
        """the same of the last shard that had queries to compute"""
        self._classifier = stack.enter_context(opener.open(settings.config, max_batch=self._most, only_configured=True))
        self._columns = AnswerColumns(
            prompts=self._classifier.compiled.settings,
            prefix=settings.prefix,
            scores=settings.scores,
            top_k=settings.top_k,
        )
        self._check_columns()
        config, model = self._classifier.config, self._classifier.model
        names = ("max_query_tokens", "long_queries", "query_tokens", "kv_type", "cpu_activations")
        limits = [[name, getattr(config.runtime, name)] for name in names]
        # of all that answers depend on except the model
        prompts = digest_of([self._classifier.compiled.digest, repr(self._classifier.adjustments), limits])
        self._digest = hashlib.sha256(f"{prompts} {model.sha256}".encode()).hexdigest()
        versions = {name: getattr(model, name) for name in ("package_version", "llama_cpp_commit", "source_digest")}
        rows = settings.run_settings([Path(input_.path) for input_ in inputs], is_joined=output.joined is not None)
        self._run_settings = {**rows, "prompts": prompts, "model_sha256": model.sha256, **versions}
        self._provenance: RunSettings = {
            "out": str(settings.out),
            "config": str(settings.config.path or "given"),
            "prompts": [prompt.name for prompt in self._columns.prompts],
            "model": Path(model.path).name,
            **{name: getattr(model, name) for name in ("quantization", "device", "backend")},
        }
        self._cache: AnswerCache | None = None
        if settings.cache is not None:
            self._cache = stack.enter_context(AnswerCache(settings.cache, self._digest, self._columns.ends[-1]))
        self._pool = stack.enter_context(ThreadPoolExecutor(2, "qcls-gguf files"))
        self._sample = AnswerSample()  # of the answers that were computed
        self._measured: tuple[BatchSpeed, ...] = ()
        self._measuring_s = 0.0
        self._n_queries = self._n_computed = 0  # distinct ones that were answered; of these, those that nobody knew
        self._n_rows = 0.0  # that they represent, evenly spread
        self._writing: Future[ShardCounts] | None = None

    def _check_columns(self) -> None:
        """Raise ConfigError if two columns would have the same name."""
        names = self._columns.schema().names
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(f"two columns would be named {twice!r}: rename a prompt")
        for input_ in self._inputs:
            with prefixed(input_.path):
                check_names(names, [*(input_.column_types.names if input_.column_types else ()), *input_.partition])

    def label(self) -> RowCounts:
        """Label the shards that are missing, and join the files; returns what became of all rows."""
        output, settings = self._output, self._settings
        if settings.overwrite:
            output.forget()
        output.check(self._run_settings)
        self._chosen_batch = self._last_batch = settings.batch or output.batch_before(self._run_settings)
        missing = output.begin(self._run_settings, {**self._provenance, "batch": self._chosen_batch}, self._inputs)
        self._tasks = output.tasks(self._inputs)
        self._n_before = len(self._tasks) - len(missing)
        if self._n_before:
            what = f"labelling the other {len(missing)}" if missing else "nothing is left to do"
            self._on_note(f"{self._n_before} of {counted(len(self._tasks), 'shard')} done already: {what}")
        self._n_missing, n_all = (sum(task.shard.n_rows for task in tasks) for tasks in (missing, self._tasks))
        self._began = perf_counter()
        try:
            blocks: deque[Future[Block]] = deque()
            for number, task in enumerate(missing):
                blocks += [self._pool.submit(self._read, next_) for next_ in missing[number + len(blocks) : number + 2]]
                block, began = blocks.popleft().result(), perf_counter()
                answers = self._answered(task, block)
                self._note_written(wait=True)
                self._writing = self._pool.submit(self._write, task, block, answers, began)
            self._note_written(wait=True)
        except BaseException:
            try:
                self._note_written(wait=True)  # what is done stays done
            finally:
                n, done = n_all - self._n_missing + self._n_rows, len(output.done)
                shards = f"{done} of {counted(len(self._tasks), 'shard')} done"
                self._on_note(f"{n:,.0f} of {n_all:,} rows are labelled, {shards}: repeat the same command to resume")
            raise
        self._seconds = perf_counter() - self._began if missing else 0.0
        for why in self._sample.suspicions(self._classifier):
            self._on_note(why)
        return output.finish(self._tasks, len(self._inputs), {**self._provenance, "batch": self._last_batch or 1})

    def _read(self, task: Task) -> Block:
        task.input.check_unchanged()
        block = read_block(task.input, task.shard, self._settings.reading, self._columns.schema().names)
        task.input.check_unchanged()
        return block

    def _answered(self, task: Task, block: Block) -> Answers:
        """The answers to a shard's queries: from those of a stopped run, from the cache, then by the model."""
        texts = block.queries.texts
        answers = Answers(self._columns, len(texts))
        rows_per_query = task.shard.n_rows / max(len(texts), 1)
        digest = hashlib.sha256("\0".join([self._digest, *texts]).encode()).digest()
        with KeptAnswers(kept_path(self._output.folder, task.output), digest, self._columns) as kept:
            cached = self._cache.find(texts) if self._cache is not None else {}
            known = {place: cached[text] for place, text in enumerate(texts) if text in cached} | kept.found
            answers.n_found = len(known)
            cuts = self._classifier.config.runtime.long_queries != "refuse"
            for place, answer in known.items():
                is_cut = cuts and self._classifier.tokenize(texts[place]).n_chars_cut > 0
                answers.put(place, answer, is_cut=is_cut)
            if n_kept := int(np.isin(block.queries.index, list(kept.found)).sum()):
                self._on_note(f"{task.input.path}: resumes after {n_kept:,} of {task.shard.n_rows:,} rows")
            self._tell(len(known), 0, rows_per_query)
            missing = [place for place in range(len(texts)) if place not in known]
            queries = [texts[place] for place in missing]
            if self._chosen_batch is None and len(queries) >= WORTH_MEASURING:
                began = perf_counter()
                self._measured = tuple(
                    measure_batches(self._classifier, queries[:: max(1, len(queries) // _N_SAMPLED)])
                )
                self._chosen_batch, self._measuring_s = best_size(self._measured), perf_counter() - began
                self._output.note({**self._provenance, "batch": self._chosen_batch})
            size = self._chosen_batch or min(_UNMEASURED, self._most)
            self._last_batch = size if queries else self._last_batch
            for results in BatchLabeller(self._classifier, size).label(queries):
                found: dict[int, Answer] = {}
                for at, result in results:
                    if isinstance(result, str):
                        answers.put(missing[at], result)
                        continue
                    found[missing[at]] = answer_of(result)
                    self._sample.add(result)
                    answers.put(missing[at], found[missing[at]], is_cut=result.n_chars_cut > 0)
                kept.add(found)
                if self._cache is not None and found:
                    self._cache.add({texts[place]: answer for place, answer in found.items()})
                self._tell(len(results), len(results), rows_per_query)
        return answers

    def _tell(self, n_queries: int, n_computed: int, rows_per_query: float) -> None:
        """Count queries that were answered, and tell the progress."""
        self._n_queries += n_queries
        self._n_computed += n_computed
        self._n_rows += n_queries * rows_per_query
        self._note_written(wait=False)  # noted at once, so that a kill loses no more
        seconds = perf_counter() - self._began - self._measuring_s
        rate, distinct = self._n_computed / max(seconds, 1e-9), self._n_queries / max(self._n_rows, 1)
        left = f", {duration((self._n_missing - self._n_rows) * distinct / rate)} left" if rate else ""
        rows = f"{self._n_rows:,.0f} of {self._n_missing:,} rows, {rate:,.1f} queries/s, {distinct:.0%} distinct{left}"
        self._on_progress(f"{rows}, {len(self._output.done)} of {len(self._tasks)} shards")

    def _write(self, task: Task, block: Block, answers: Answers, began: float) -> ShardCounts:
        format_ = self._settings.format or task.input.format
        added = answers.table(block.queries, None if format_ == "parquet" else DIGITS)
        for name, value in reversed(task.input.partition.items()):
            added = added.add_column(0, name, pa.array([value] * added.num_rows, pa.string()))
        path = self._output.folder / task.output
        n_bytes = write_block(path, block, added, format_, header=task.header)
        kept_path(self._output.folder, task.output).unlink(missing_ok=True)
        seconds = perf_counter() - began
        return shard_counts(task.input.path, task.output, block.queries, answers, n_bytes=n_bytes, seconds=seconds)

    def _note_written(self, *, wait: bool) -> None:
        """Record the shard whose file was written last, if it is whole."""
        if self._writing is not None and (wait or self._writing.done()):
            writing, self._writing = self._writing, None
            self._output.add(writing.result())

    def record(self, totals: RowCounts, warnings: tuple[str, ...]) -> LabellingRecord:
        """What the command prints as JSON."""
        seconds = self._seconds
        rate = self._n_computed / (seconds - self._measuring_s) if self._n_computed else None
        return LabellingRecord(
            **dict(totals),
            out=str(self._settings.out),
            n_inputs=len(self._inputs),
            n_shards=len(self._tasks),
            n_shards_before=self._n_before,
            speed=RunSpeed(
                seconds=seconds,
                measuring_s=self._measuring_s,
                n_rows=self._n_missing,
                n_computed=self._n_computed,
                queries_per_s=rate,
                batch=self._last_batch or 1,
                measured=self._measured,
            ),
            peak_memory_bytes=peak_rss_bytes(),
            model=self._classifier.model,
            environment=environment(self._classifier.config),
            warnings=warnings,
        )
