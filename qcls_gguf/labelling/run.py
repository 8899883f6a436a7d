"""Files labelled shard by shard: planned, dealt to workers, noted when they are done, joined where one is wanted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Literal

from ..config.words import counted
from ..errors import ConfigError
from ..opening import ClassifierOpener
from .answers import ERROR
from .crews import Crew, OwnProcess, Processes
from .frequency import chunks, frequent_queries
from .inputs import Stamp, check_names, find_inputs, format_of, stamp_of
from .job import Done, Job, Message, Order, Ready, Speeds, Step, Task
from .output import OutputFolder, Settings
from .progress import OnProgress, Progress
from .records import LabellingRecord
from .shards import PlannedInput, first_rows, plan_input, sampled_rows
from .totals import labelling_record, totals
from .writing import ENDINGS, join_files

SHARD_ROWS = 50_000
SHARDS = ".shards"
Engine = Literal["local", "ray"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSettings:
    """What is labelled, and how."""

    job: Job
    """its folder and format are found by the output"""
    inputs: tuple[str, ...]
    """files, patterns, folders"""
    out: Path
    """a file that ends in a known ending, or a folder"""
    shard_rows: int = SHARD_ROWS
    limit: int | None = None
    """only the first rows of all inputs together"""
    sample: int | None = None
    """only so many rows of all inputs, by chance"""
    seed: int = 0
    """of the sample"""
    order: Order = "input"
    overwrite: bool = False
    """label everything anew, whatever is there"""
    redo_changed: bool = False
    """label inputs anew that were changed since"""
    devices: tuple[str, ...] = ()
    """a process for each; none: in this process"""
    engine: Engine = "local"


def label_files(
    settings: LabelSettings,
    opener: ClassifierOpener,
    *,
    on_progress: OnProgress = lambda progress: None,
    on_note: Callable[[str], None] = lambda note: None,
) -> LabellingRecord:
    """Label the rows of some files, or what earlier runs on the same output left of them.

    on_note: is told in words what is done already, and what was redone. Raises ConfigError and what
    Classifier.from_config raises before anything is labelled, and QclsError where an input or the output fails: what is
    done stays, and the same call goes on from there.
    """
    return _Run(settings, opener, on_progress, on_note).run()


class _Run:
    def __init__(
        self,
        settings: LabelSettings,
        opener: ClassifierOpener,
        on_progress: OnProgress,
        on_note: Callable[[str], None],
    ) -> None:
        _check(settings)
        out = settings.out
        self._joined = out if out.suffix.lower() in ENDINGS.values() and not out.is_dir() else None
        folder = out.with_name(out.name + SHARDS) if self._joined else out
        format_ = settings.job.format or (format_of(out) if self._joined else None)
        if self._joined and format_ != format_of(out):
            raise ConfigError(f"`out` {out}: ends in another format than `format` {format_}: keep one of them")
        self._job = replace(settings.job, folder=folder, format=format_)
        self._settings, self._opener = settings, opener
        self._on_progress, self._on_note = on_progress, on_note
        self._speeds: Speeds | None = None
        self._progress = Progress(n_rows=0)
        self._peak: int | None = None

    def run(self) -> LabellingRecord:
        paths = self._inputs()
        with OutputFolder(self._job.folder, self._joined) as output:
            planned = self._planned(output, paths)
            crew = self._crew()
            try:
                ready = crew.start()
                self._check_columns(ready, planned)
                return self._labelled(output, planned, crew, ready)
            finally:
                crew.close()

    def _inputs(self) -> list[Path]:
        """The files, but for what an earlier run wrote into a folder of inputs."""
        own = Path(os.path.abspath(self._job.folder))
        found = [Path(os.path.abspath(path)) for path in find_inputs(self._settings.inputs)]
        paths = [path for path in found if own not in path.parents and path != self._settings.out.absolute()]
        if not paths:
            raise ConfigError(f"`out` {self._settings.out}: all inputs are in it: name another output")
        return paths

    def _planned(self, output: OutputFolder, paths: Sequence[Path]) -> list[PlannedInput]:
        """The inputs with their shards: as the manifest has them, where they have not changed."""
        known = {} if self._settings.overwrite else output.inputs()
        if known:
            output.check(self._plan_settings(paths))
        planned = []
        for path in paths:
            before = known.get(str(path))
            if before is not None:
                now = stamp_of(path)
                if before.stamp.is_same(now):
                    planned.append(replace(before, stamp=now))
                    continue
                self._refuse_changed(output, before, now)
            format_ = format_of(path)
            typed = (self._job.format or format_) != "jsonl"
            planned.append(plan_input(path, format_, self._job.column, self._settings.shard_rows, typed=typed))
            self._on_note(f"{path}: {planned[-1].n_rows:,} rows in {counted(len(planned[-1].shards), 'shard')}")
        if self._settings.limit is not None and not known:
            planned = first_rows(planned, self._settings.limit)
        if self._settings.sample is not None and not known:
            planned = sampled_rows(planned, self._settings.sample, self._settings.seed)
        if self._joined and len({each.columns for each in planned}) > 1 and self._job.format != "jsonl":
            raise ConfigError(
                f"`out` {self._joined}: the inputs have different columns, {planned[0].path} and others: name a "
                "folder, which gets a file for each"
            )
        return planned

    def _refuse_changed(self, output: OutputFolder, before: PlannedInput, now: Stamp) -> None:
        done = [name for name in output.done if name.rpartition("-")[0] == output.names()[before.path]]
        what = (
            f"{before.path}: was changed since it was labelled ({before.stamp.n_bytes} bytes then, {now.n_bytes} now)"
        )
        if not self._settings.redo_changed or self._joined or self._is_part:
            raise ConfigError(
                f"{what}: label it anew with `redo_changed`, or everything with `overwrite`, or name another output; "
                f"the {counted(len(done), 'shard')} that are there stay"
            )
        output.remove(done)
        self._on_note(f"{what}: labelling it anew")

    @property
    def _is_part(self) -> bool:
        return self._settings.limit is not None or self._settings.sample is not None

    def _plan_settings(self, paths: Sequence[Path]) -> Settings:
        """What must be as it was before, as far as it is known without a model."""
        settings, job = self._settings, self._job
        # Where rows are counted over all inputs, or all become one file, there must be the same ones.
        inputs = [str(path) for path in paths] if self._joined or self._is_part else None
        return {
            "column": job.column,
            "format": job.format,
            "prefix": job.prefix,
            "scores": job.scores,
            "top_k": job.top_k,
            "shard_rows": settings.shard_rows,
            "limit": settings.limit,
            "sample": settings.sample,
            "seed": settings.seed if settings.sample is not None else None,
            "inputs": inputs,
        }

    def _check_columns(self, ready: Ready, planned: Sequence[PlannedInput]) -> None:
        job = self._job
        names = [f"{job.prefix}{name}" for prompt in ready.prompts for name in _names(prompt.name, job)]
        names.append(f"{job.prefix}{ERROR}")
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(f"two columns would be named {twice!r}: rename a prompt")
        for each in planned:
            if each.schema is not None:
                check_names(names, each.schema.names, Path(each.path))

    def _crew(self) -> Crew:
        settings = self._settings
        if settings.engine == "ray":
            from .on_ray import RayActors  # the package is an extra

            return RayActors(self._job, settings.devices, self._told)
        if settings.devices:
            return Processes(self._job, settings.devices, self._told)
        return OwnProcess(self._job, self._opener, self._told)

    def _labelled(
        self, output: OutputFolder, planned: Sequence[PlannedInput], crew: Crew, ready: Ready
    ) -> LabellingRecord:
        whole = {
            **self._plan_settings([Path(each.path) for each in planned]),
            "prompts": ready.digest,
            "model_sha256": ready.model.sha256,
            "package_version": ready.model.package_version,
            "llama_cpp_commit": ready.model.llama_cpp_commit,
            "source_digest": ready.model.source_digest,
        }
        if self._settings.overwrite:
            output.forget()
            if self._joined:
                self._joined.unlink(missing_ok=True)
        output.check(whole)
        batch = output.manifest.get("provenance", {}).get("batch") if self._job.batch is None else None
        names = _file_names(planned, output.names())
        output.begin(whole, self._provenance(ready, batch), planned, names)
        tasks = list(self._tasks(planned, names))
        missing = [task for task in tasks if task.output not in output.done]
        n_before = len(tasks) - len(missing)
        if n_before:
            what = f"labelling the other {len(missing)}" if missing else "nothing is left to do"
            self._on_note(f"{n_before} of {counted(len(tasks), 'shard')} done already: {what}")
        self._progress = Progress(
            n_rows=sum(task.shard.n_kept for task in missing), n_shards=len(tasks), done_shards=n_before
        )
        if missing:
            self._label(output, planned, crew, missing, Speeds(batch=batch) if batch else None)
            if self._speeds is not None and self._speeds.batch != batch:
                output.manifest["provenance"]["batch"] = self._speeds.batch
        seconds = self._progress.seconds
        counts = [output.done[task.output] for task in tasks]
        record = labelling_record(
            self._settings.out,
            counts,
            planned,
            ready,
            n_before=n_before,
            progress=self._progress,
            seconds=seconds,
            speeds=self._speeds or Speeds(batch=self._job.batch or batch or 1),
            peak=self._peak,
        )
        return self._finished(output, tasks, record)

    def _label(
        self,
        output: OutputFolder,
        planned: Sequence[PlannedInput],
        crew: Crew,
        missing: Sequence[Task],
        speeds: Speeds | None,
    ) -> None:
        first: Iterator[object] = iter(())
        if self._settings.order == "frequency":
            queries = frequent_queries(missing, self._job.column)
            self._on_note(f"{len(queries):,} queries come more than once: labelling these first")
            first = chunks(queries)
        try:
            for done in crew.label(chain(first, missing), speeds):  # type: ignore[arg-type]
                if isinstance(done, Done):
                    output.add(done.counts)
                    self._progress.done_shards += 1
                    self._peak = max(self._peak or 0, done.peak_memory_bytes or 0) or None
                self._on_progress(self._progress)
        except BaseException:
            self._on_note(
                f"{self._progress.done_shards} of {counted(self._progress.n_shards, 'shard')} are done: the same "
                "command goes on from there"
            )
            raise

    def _provenance(self, ready: Ready, batch: int | None) -> Settings:
        model, job = ready.model, self._job
        return {
            "out": str(self._settings.out),
            "config": str(job.config.path or "given"),
            "prompts": [prompt.name for prompt in ready.prompts],
            "model": Path(model.path).name,
            "quantization": model.quantization,
            "device": model.device,
            "backend": model.backend,
            "batch": job.batch or batch,
        }

    def _tasks(self, planned: Sequence[PlannedInput], names: dict[str, str]) -> Iterator[Task]:
        for each in planned:
            bare = replace(each, shards=())
            ending = ENDINGS[self._job.format or each.format]  # type: ignore[index]
            for number, shard in enumerate(each.shards):
                yield Task(shard=shard, output=f"{names[each.path]}-{number:05}{ending}", planned=bare)

    def _told(self, message: Message) -> None:
        if isinstance(message, Speeds):
            self._speeds = message
        if isinstance(message, Step):
            self._progress.n_queries += message.n_queries
            self._progress.n_computed += message.n_computed
            self._progress.done_rows += message.n_rows
            self._on_progress(self._progress)

    def _finished(self, output: OutputFolder, tasks: Sequence[Task], record: LabellingRecord) -> LabellingRecord:
        """Join the files where one is wanted, and write what all comes to."""
        if self._joined is None:
            output.finish(totals(record))
            return record
        files = [self._job.folder / task.output for task in tasks]
        if not output.is_joined:
            join_files(files, self._joined, self._job.format)  # type: ignore[arg-type]
        record = record.model_copy(update={"n_bytes": self._joined.stat().st_size})
        output.finish({**totals(record), "joined_bytes": record.n_bytes})
        for file in files:
            file.unlink(missing_ok=True)
        return record


def _check(settings: LabelSettings) -> None:
    if settings.limit is not None and settings.sample is not None:
        raise ConfigError("`limit` and `sample` are both given: keep one of them")
    if settings.order == "frequency" and settings.job.cache is None:
        raise ConfigError("`order` frequency: what is labelled first is kept in a `cache`: name its file")
    if settings.engine == "ray" and settings.job.cache is not None:
        raise ConfigError("`cache`: is a file of one machine, and Ray's actors may be on several: leave it out")


def _names(prompt: str, job: Job) -> list[str]:
    more = [f"{prompt}_scores"] if job.scores or job.top_k is not None else []
    return [prompt, f"{prompt}_probability", *more]


def _file_names(planned: Sequence[PlannedInput], known: dict[str, str]) -> dict[str, str]:
    """What the files of each input are named by: the input's own name, with a number where two have the same."""
    names = {each.path: known[each.path] for each in planned if each.path in known}
    taken = {*names.values(), *known.values()}
    for each in planned:
        if each.path not in names:
            stem = Path(each.path).stem.lstrip(".") or "input"
            number, name = 2, stem
            while name in taken:
                name, number = f"{stem}~{number}", number + 1
            names[each.path] = name
            taken.add(name)
    return names
