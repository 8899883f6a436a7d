"""Files labelled shard by shard: dealt to workers, noted when they are done, joined where one is wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from ..config.words import counted
from ..opening import ClassifierOpener
from .crews import Crew, OwnProcess, Processes
from .frequency import chunks, frequent_queries
from .job import Done, Message, Ready, Speeds, Step, Task
from .output import OutputFolder, Settings
from .planning import LabelSettings, RunPlan, file_names
from .progress import OnProgress, Progress
from .records import LabellingRecord
from .shards import PlannedInput
from .totals import labelling_record, totals
from .writing import join_files


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
        self._plan = RunPlan(settings, on_note)
        self._job, self._joined = self._plan.job, self._plan.joined
        self._settings, self._opener = settings, opener
        self._on_progress, self._on_note = on_progress, on_note
        self._speeds: Speeds | None = None
        self._progress = Progress(n_rows=0)
        self._peak: int | None = None

    def run(self) -> LabellingRecord:
        paths = self._plan.inputs()
        with OutputFolder(self._job.folder, self._joined) as output:
            planned = self._plan.planned(output, paths)
            crew = self._crew()
            try:
                ready = crew.start()
                self._plan.check_columns(ready, planned)
                return self._labelled(output, planned, crew, ready)
            finally:
                crew.close()

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
            **self._plan.settings([Path(each.path) for each in planned]),
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
        names = file_names(planned, output.names())
        output.begin(whole, self._provenance(ready, batch), planned, names)
        tasks = list(self._plan.tasks(planned, names))
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
