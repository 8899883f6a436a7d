"""Labels files: finds inputs and shards, labels and records the shards that are missing, joins them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from time import perf_counter

from ..config.words import counted
from ..data.rows import QUERY, bare_name
from ..errors import ConfigError, prefixed
from ..opening import ClassifierOpener
from ..report.environment import environment, peak_rss_bytes
from .batches import best_size
from .inputs import Input, check_names, find_inputs, first_rows, read_input
from .output import OutputFolder, Settings
from .records import LabellingRecord, RunSpeed
from .worker import LabelSettings, Progress, Worker

Tell = Callable[[str], None]


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
    settings = replace(settings, folder=output.folder, format=output.format)
    paths = _without_outputs(find_inputs(settings.inputs), output)
    with output:
        inputs = _planned(settings, output, paths, on_note)
        with Worker(settings, opener) as worker:
            _check_columns(worker.columns.schema().names, inputs)
            return _labelled(settings, output, inputs, worker, opener, on_progress, on_note)


def _without_outputs(found: Sequence[Path], output: OutputFolder) -> list[Path]:
    """The inputs except what an earlier run wrote into a folder of inputs."""
    absolute = [Path(os.path.abspath(path)) for path in found]
    own = Path(os.path.abspath(output.folder))
    paths = [path for path in absolute if own not in path.parents and path != output.out.absolute()]
    if not paths:
        raise ConfigError(f"`out` {output.out}: all inputs are in it: name another output")
    return paths


def _planned(settings: LabelSettings, output: OutputFolder, paths: Sequence[Path], on_note: Tell) -> list[Input]:
    """The inputs with their shards; those of the manifest for inputs that have not changed."""
    known: dict[str, Input] = {}
    if not settings.overwrite:
        output.check_joined()
        output.check(_row_settings(settings, output, paths))
        known = {each.path: each for each in output.manifest.inputs} if output.manifest else {}
    names = {each.path: each.name for each in known.values()}
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
            on_note(f"{path}: {n_rows:,} rows in {counted(len(now.shards), 'shard')}")
        name = names.setdefault(str(path), _new_name(path, names.values()))
        inputs.append(now.model_copy(update={"name": name}))
    if output.joined and len({(each.columns, *each.partition) for each in inputs}) > 1 and settings.format != "jsonl":
        raise ConfigError(
            f"`out` {output.joined}: the inputs have different columns, {inputs[0].path} and others: name a folder, "
            "which gets a file for each"
        )
    if settings.limit is not None and not known:
        inputs = first_rows(inputs, settings.limit)
    if not output.tasks(inputs):
        n_shards = sum(len(each.shards) for each in inputs)
        part = "/".join(map(str, settings.part))
        raise ConfigError(f"`part` {part}: the inputs have {counted(n_shards, 'shard')} only: lower `shard_rows`")
    return inputs


def _new_name(path: Path, taken: Collection[str]) -> str:
    """The beginning of the names of an input's output files: its own name, numbered if another input has the same."""
    stem = bare_name(path).stem.lstrip(".") or "input"
    return next(name for name in chain([stem], (f"{stem}~{number}" for number in count(2))) if name not in taken)


def _row_settings(settings: LabelSettings, output: OutputFolder, paths: Sequence[Path]) -> Settings:
    """The settings, as far as they are known without a model, that a resumed run must share."""
    # Where rows are counted over all inputs, or all become one file, there must be the same ones.
    inputs = [str(path) for path in paths] if output.joined or settings.is_partial else None
    names = ("format", "prefix", "scores", "top_k", "shard_rows", "limit")
    reading = settings.reading
    return {
        **{name: getattr(settings, name) for name in names},
        "query_column": reading.query or QUERY,
        "input_format": reading.format,
        "encoding": reading.encoding,
        "delimiter": reading.delimiter,
        "part": "/".join(map(str, settings.part)) if settings.part != (1, 1) else None,
        "inputs": inputs,
    }


def _check_columns(names: Sequence[str], inputs: Sequence[Input]) -> None:
    """Raise ConfigError if two prompts would have columns of the same name."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"two columns would be named {twice!r}: rename a prompt")
    for each in inputs:
        with prefixed(each.path):
            check_names(names, [*(each.column_types.names if each.column_types else ()), *each.partition])


def _labelled(
    settings: LabelSettings,
    output: OutputFolder,
    inputs: Sequence[Input],
    worker: Worker,
    opener: ClassifierOpener,
    on_progress: Tell,
    on_note: Tell,
) -> LabellingRecord:
    model = worker.classifier.model
    versions = {name: getattr(model, name) for name in ("package_version", "llama_cpp_commit", "source_digest")}
    rows = _row_settings(settings, output, [Path(each.path) for each in inputs])
    whole = {**rows, "prompts": worker.digest, "model_sha256": model.sha256, **versions}
    if settings.overwrite:
        output.forget()
    output.check(whole)
    batch = settings.batch or output.batch_before(whole)
    provenance: Settings = {
        "out": str(settings.out),
        "config": str(settings.config.path or "given"),
        "prompts": [prompt.name for prompt in worker.columns.prompts],
        "model": Path(model.path).name,
        **{name: getattr(model, name) for name in ("quantization", "device", "backend")},
    }
    missing = output.begin(whole, {**provenance, "batch": batch}, inputs)
    tasks = output.tasks(inputs)
    n_before = len(tasks) - len(missing)
    if n_before:
        what = f"labelling the other {len(missing)}" if missing else "nothing is left to do"
        on_note(f"{n_before} of {counted(len(tasks), 'shard')} done already: {what}")
    n_rows, n_all = (sum(task.shard.n_rows for task in some) for some in (missing, tasks))
    so_far, began, measuring_s = Progress(), perf_counter(), 0.0
    try:
        for more in worker.label(missing, batch) if missing else ():
            so_far.add(more)
            if more.kept:
                on_note(more.kept)
            if more.measured:
                measuring_s = perf_counter() - began
                output.note({**provenance, "batch": best_size(more.measured)})
            for counts in more.done:
                output.add(counts)
            line = so_far.line(n_rows, perf_counter() - began - measuring_s)
            on_progress(f"{line}, {len(output.done)} of {len(tasks)} shards")
    except BaseException:
        n, shards = n_all - n_rows + so_far.n_rows, f"{len(output.done)} of {counted(len(tasks), 'shard')}"
        on_note(f"{n:,.0f} of {n_all:,} rows are labelled, {shards} done: repeat the same command to resume")
        raise
    seconds = perf_counter() - began
    batch = so_far.batch or batch or 1
    totals = output.finish(tasks, len(inputs), {**provenance, "batch": batch})
    for why in worker.sample.suspicions(worker.classifier):
        on_note(why)
    return LabellingRecord(
        **dict(totals),
        out=str(settings.out),
        n_inputs=len(inputs),
        n_shards=len(tasks),
        n_shards_before=n_before,
        speed=RunSpeed(
            seconds=seconds if n_rows else 0.0,
            measuring_s=measuring_s,
            n_rows=n_rows,
            n_computed=so_far.n_computed,
            queries_per_s=so_far.n_computed / (seconds - measuring_s) if so_far.n_computed else None,
            batch=batch,
            measured=so_far.measured,
        ),
        peak_memory_bytes=peak_rss_bytes(),
        model=model,
        environment=environment(worker.classifier.config),
        warnings=tuple(map(str, opener.warnings)),
    )
