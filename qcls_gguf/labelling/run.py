"""Labels files shard by shard with one classifier: reads the next shard and writes the last one while it decodes."""

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from time import perf_counter

import numpy as np
import pyarrow as pa
from pydantic import JsonValue

from ..classifier import Classifier
from ..config.schema import Config
from ..config.words import counted, digest_of
from ..data.rows import PLAIN, QUERY, Format, Reading, bare_name
from ..engine.capacity import MOST_TOGETHER
from ..errors import ConfigError, prefixed
from ..opening import ClassifierOpener
from ..report.environment import environment
from .answers import Answer, AnswerColumns, Answers, BatchLabeller, KeptAnswers, answer_of
from .blocks import DIGITS, Block, read_block, write_block
from .inputs import Input, check_names, find_inputs, first_rows, read_input
from .output import OutputFolder, RunSettings, Task
from .records import LabellingRecord, RunSpeed, shard_counts

FEW_TOGETHER = 8
"""queries of a decode where nothing is said, on a CPU: more or fewer label no faster"""
_KNOWN_BYTES, _ANSWER_BYTES = 64 << 20, 500
"""of answers that later shards may ask for again; of one without its probabilities"""
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
    batch: int | None = None
    """queries of a decode; None: FEW_TOGETHER on a CPU, MOST_TOGETHER on a GPU"""
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
        names = ("format", "prefix", "scores", "shard_rows", "limit")
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
    settings: LabelSettings, opener: ClassifierOpener, *, on_note: Tell = lambda note: None
) -> LabellingRecord:
    """Label the rows of some files, except what earlier runs on the same output have labelled.

    on_note gets what was already done, in words. Raises ConfigError and the errors of Classifier.from_config before
    anything is labelled, and QclsError if an input or the output fails: finished shards stay, and the same call resumes
    from there.
    """
    output = OutputFolder(settings.out, settings.format, settings.part)
    settings = replace(settings, format=output.format)
    # without what an earlier run wrote into a folder of inputs
    own, found = Path(os.path.abspath(output.folder)), [Path(os.path.abspath(p)) for p in find_inputs(settings.inputs)]
    paths = [path for path in found if own not in path.parents and path != output.out.absolute()]
    if not paths:
        raise ConfigError(f"`out` {output.out}: all inputs are in it: name another output")
    with output, ExitStack() as stack:
        inputs = _planned(settings, output, paths, on_note)
        most = settings.batch or MOST_TOGETHER
        classifier = stack.enter_context(opener.open(settings.config, max_batch=most, only_configured=True))
        columns = AnswerColumns(prompts=classifier.compiled.settings, prefix=settings.prefix, scores=settings.scores)
        _check_columns(columns.schema().names, inputs)
        rows = settings.run_settings([Path(input_.path) for input_ in inputs], is_joined=output.joined is not None)
        run_settings, model = {**rows, **_model_settings(classifier)}, classifier.model
        if settings.overwrite:
            output.forget()
        output.check(run_settings)
        missing = output.begin(run_settings, inputs)
        tasks = output.tasks(inputs)
        n_before = len(tasks) - len(missing)
        if n_before:
            what = f"labelling the other {len(missing)}" if missing else "nothing is left to do"
            on_note(f"{n_before} of {counted(len(tasks), 'shard')} done already: {what}")
        n_all, n_left = (sum(task.shard.n_rows for task in shards) for shards in (tasks, missing))
        batch = settings.batch or (MOST_TOGETHER if model.n_gpu_layers else FEW_TOGETHER)
        answered_by = run_settings["prompts"], run_settings["model_sha256"]
        run = _Run(settings, output, classifier, columns, answered_by, batch, opener, on_note, n_left)
        try:
            speed = run.label(missing)
        except BaseException:
            n, n_shards = n_all - n_left + run.n_rows, counted(len(tasks), "shard")
            done = f"{n:,.0f} of {n_all:,} rows are labelled, {len(output.done)} of {n_shards} done"
            on_note(f"{done}: repeat the same command to resume")
            raise
        totals = output.finish(tasks)
        return LabellingRecord(
            **dict(totals),
            out=str(settings.out),
            n_inputs=len(inputs),
            n_shards=len(tasks),
            n_shards_before=n_before,
            speed=speed,
            model=model,
            environment=environment(classifier.config),
            warnings=tuple(map(str, opener.warnings)),
        )


def _planned(settings: LabelSettings, output: OutputFolder, paths: Sequence[Path], on_note: Tell) -> list[Input]:
    """The inputs with their shards; those of the manifest for inputs that have not changed."""
    known: dict[str, Input] = {}
    if not settings.overwrite:
        if output.joined and output.joined.exists():
            remedy = "name another output, or replace it with `overwrite`"
            raise ConfigError(f"`out` {output.joined}: is there already: {remedy}")
        output.check(settings.run_settings(paths, is_joined=output.joined is not None))
        known = {input_.path: input_ for input_ in output.manifest.inputs} if output.manifest else {}
    names = {input_.path: input_.name for input_ in known.values()}
    inputs = []
    for path in paths:
        if now := known.get(str(path)):
            now.check_unchanged()
        else:
            now = read_input(path, settings.reading, settings.shard_rows, settings.format)
            n_rows = sum(shard.n_rows for shard in now.shards)
            on_note(f"{path}: {n_rows:,} rows in {counted(len(now.shards), 'shard')}, read as {now.format}")
        # its own name, numbered if another input has the same
        stem = bare_name(path).stem.lstrip(".") or "input"
        tried = chain([stem], (f"{stem}~{number}" for number in count(2)))
        name = names.setdefault(str(path), next(name for name in tried if name not in names.values()))
        inputs.append(now.model_copy(update={"name": name}))
    kinds = {(*input_.columns.items(), *input_.partition) for input_ in inputs}
    if output.joined and len(kinds) > 1 and settings.format != "jsonl":
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


def _model_settings(classifier: Classifier) -> RunSettings:
    """What a resumed run must share of its model and prompts."""
    model, runtime = classifier.model, classifier.config.runtime
    names = ("max_query_tokens", "long_queries", "query_tokens", "kv_type", "cpu_activations")
    limits = [[name, getattr(runtime, name)] for name in names]
    # of all that answers depend on except the model
    prompts = digest_of([classifier.compiled.digest, repr(classifier.answer_maker.adjustments), limits])
    versions = {name: getattr(model, name) for name in ("package_version", "llama_cpp_commit", "source_digest")}
    return {"prompts": prompts, "model_sha256": model.sha256, **versions}


def _check_columns(names: Sequence[str], inputs: Sequence[Input]) -> None:
    """Raise ConfigError if two columns would have the same name."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"two columns would be named {twice!r}: rename a prompt")
    for input_ in inputs:
        with prefixed(input_.path):
            check_names(names, [*input_.columns, *input_.partition])


@dataclass(slots=True)
class _Run:
    """Labels the shards that are left."""

    settings: LabelSettings
    output: OutputFolder
    classifier: Classifier
    columns: AnswerColumns
    answered_by: Sequence[JsonValue]
    """all that answers depend on but the query, as digests"""
    batch: int
    """queries of a decode"""
    opener: ClassifierOpener
    on_note: Tell
    n_left: int
    """rows of these shards"""
    n_rows: float = 0.0
    """of these, how many the queries that were answered represent, evenly spread"""
    known: dict[str, Answer] = field(default_factory=dict)
    """of shards before, up to _KNOWN_BYTES"""
    n_computed: int = 0
    """queries that were computed"""
    writing: Future[None] | None = None
    """the last shard"""

    def label(self, missing: Sequence[Task]) -> RunSpeed:
        """Label these shards, one of them while the next one is read and the last one is written."""
        start = perf_counter()
        with ThreadPoolExecutor(2, "qcls-gguf files") as pool:  # what is done stays done, whatever is raised
            blocks: deque[Future[Block]] = deque()
            for number, task in enumerate(missing):
                blocks += [pool.submit(self._read, next_) for next_ in missing[number + len(blocks) : number + 2]]
                block = blocks.popleft().result()
                answers = self._answered(task, block)
                if self.writing:
                    self.writing.result()
                self.writing = pool.submit(self._write, task, block, answers)
        if self.writing:
            self.writing.result()
        return RunSpeed(
            seconds=perf_counter() - start, n_rows=self.n_left, n_computed=self.n_computed, batch=self.batch
        )

    def _read(self, task: Task) -> Block:
        task.input.check_unchanged()
        block = read_block(task.input, task.shard, self.settings.reading, self.columns.schema().names)
        task.input.check_unchanged()
        return block

    def _answered(self, task: Task, block: Block) -> Answers:
        """The answers to a shard's queries: those of a stopped run, of earlier shards, then by the model."""
        texts = block.queries.texts
        answers = Answers(self.columns, len(texts))
        rows_per_query = task.shard.n_rows / max(len(texts), 1)
        key = digest_of([self.answered_by, *texts]).encode()
        with KeptAnswers(self.output.kept_path(task.output), key) as kept:
            if kept.known:
                n_kept = int(np.isin(block.queries.index, list(kept.known)).sum())
                self.on_note(f"{task.input.path}: resumes after {n_kept:,} of {task.shard.n_rows:,} rows")
            known = {place: self.known[text] for place, text in enumerate(texts) if text in self.known} | kept.known
            answers.n_found = len(known)
            for place, answer in known.items():
                answers.put(place, answer)
            self._tell(len(known) * rows_per_query)
            missing = [place for place in range(len(texts)) if place not in known]
            most = _KNOWN_BYTES // (8 * self.columns.ends[-1] + _ANSWER_BYTES)
            for results in BatchLabeller(self.classifier, self.batch).label([texts[place] for place in missing]):
                found = {missing[at]: answer_of(result) for at, result in results if not isinstance(result, str)}
                reasons = {missing[at]: result for at, result in results if isinstance(result, str)}
                for place, result in (found | reasons).items():
                    answers.put(place, result)
                kept.add(found)
                if len(self.known) < most:
                    self.known |= {texts[place]: answer for place, answer in found.items()}
                self.n_computed += len(results)
                self._tell(len(results) * rows_per_query)
        return answers

    def _tell(self, n_rows: float) -> None:
        """Count rows whose queries were answered, and tell the progress."""
        self.n_rows += n_rows
        if self.writing and self.writing.done():
            self.writing.result()  # an error is told at once
        self.opener.on_progress("label", round(self.n_rows), self.n_left)

    def _write(self, task: Task, block: Block, answers: Answers) -> None:
        format_ = self.settings.format or task.input.format
        added = answers.table(block.queries, None if format_ == "parquet" else DIGITS)
        for name, value in reversed(task.input.partition.items()):
            added = added.add_column(0, name, pa.array([value] * added.num_rows, pa.string()))
        n_bytes = write_block(self.output.folder / task.output, block, added, format_, header=task.header)
        self.output.kept_path(task.output).unlink(missing_ok=True)
        self.output.add(shard_counts(task.input.path, task.output, block.queries, answers, n_bytes=n_bytes))
