"""What a run of `label` has to do: its inputs with their shards, as earlier runs on the same output left them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ..config.words import counted
from ..data.rows import is_file_ending
from ..errors import ConfigError
from .answers import ERROR
from .inputs import Stamp, check_names, find_inputs, format_of, stamp_of
from .job import Job, Order, Ready, Task
from .output import OutputFolder, Settings
from .shards import PlannedInput, first_rows, plan_input, sampled_rows
from .writing import ENDINGS

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


class RunPlan:
    """Plans a run, without a model."""

    def __init__(self, settings: LabelSettings, on_note: Callable[[str], None]) -> None:
        """on_note: is told in words what is planned, and what is redone. Raises ConfigError."""
        _check(settings)
        out = settings.out
        self.joined = out if out.suffix.lower() in ENDINGS.values() and not out.is_dir() else None
        """the one file that all shards become in the end"""
        if self.joined is None and is_file_ending(out.suffix) and not out.is_dir():
            endings = ", ".join(dict.fromkeys(ENDINGS.values()))
            raise ConfigError(f"`out` {out}: cannot be {out.suffix}: name a file that ends in {endings}, or a folder")
        folder = out.with_name(out.name + SHARDS) if self.joined else out
        format_ = settings.job.format or (format_of(out) if self.joined else None)
        if self.joined and format_ != format_of(out):
            raise ConfigError(f"`out` {out}: ends in another format than `format` {format_}: keep one of them")
        self.job = replace(settings.job, folder=folder, format=format_)
        self._settings, self._on_note = settings, on_note

    def inputs(self) -> list[Path]:
        """The files, but for what an earlier run wrote into a folder of inputs."""
        own = Path(os.path.abspath(self.job.folder))
        found = [Path(os.path.abspath(path)) for path in find_inputs(self._settings.inputs)]
        paths = [path for path in found if own not in path.parents and path != self._settings.out.absolute()]
        if not paths:
            raise ConfigError(f"`out` {self._settings.out}: all inputs are in it: name another output")
        return paths

    def planned(self, output: OutputFolder, paths: Sequence[Path]) -> list[PlannedInput]:
        """The inputs with their shards: as the manifest has them, where they have not changed."""
        if not self._settings.overwrite:
            output.check_joined()
        known = {} if self._settings.overwrite else output.inputs()
        if known:
            output.check(self.settings(paths))
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
            typed = (self.job.format or format_) != "jsonl"
            planned.append(plan_input(path, format_, self.job.column, self._settings.shard_rows, typed=typed))
            self._on_note(f"{path}: {planned[-1].n_rows:,} rows in {counted(len(planned[-1].shards), 'shard')}")
        if self._settings.limit is not None and not known:
            planned = first_rows(planned, self._settings.limit)
        if self._settings.sample is not None and not known:
            planned = sampled_rows(planned, self._settings.sample, self._settings.seed)
        if self.joined and len({each.columns for each in planned}) > 1 and self.job.format != "jsonl":
            raise ConfigError(
                f"`out` {self.joined}: the inputs have different columns, {planned[0].path} and others: name a "
                "folder, which gets a file for each"
            )
        return planned

    def settings(self, paths: Sequence[Path]) -> Settings:
        """What must be as it was before, as far as it is known without a model."""
        settings, job = self._settings, self.job
        # Where rows are counted over all inputs, or all become one file, there must be the same ones.
        inputs = [str(path) for path in paths] if self.joined or self._is_part else None
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

    def check_columns(self, ready: Ready, planned: Sequence[PlannedInput]) -> None:
        """Raise ConfigError where a column of the labels would be there twice."""
        job = self.job
        names = [f"{job.prefix}{name}" for prompt in ready.prompts for name in _names(prompt.name, job)]
        names.append(f"{job.prefix}{ERROR}")
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(f"two columns would be named {twice!r}: rename a prompt")
        for each in planned:
            if each.schema is not None:
                check_names(names, each.schema.names, Path(each.path))

    def tasks(self, planned: Sequence[PlannedInput], names: dict[str, str]) -> Iterator[Task]:
        """All shards with their files; names: see `file_names`."""
        for each in planned:
            bare = replace(each, shards=())
            ending = ENDINGS[self.job.format or each.format]  # type: ignore[index]
            for number, shard in enumerate(each.shards):
                yield Task(shard=shard, output=f"{names[each.path]}-{number:05}{ending}", planned=bare)

    def _refuse_changed(self, output: OutputFolder, before: PlannedInput, now: Stamp) -> None:
        done = [name for name in output.done if name.rpartition("-")[0] == output.names()[before.path]]
        what = (
            f"{before.path}: was changed since it was labelled ({before.stamp.n_bytes} bytes then, {now.n_bytes} now)"
        )
        if not self._settings.redo_changed or self.joined or self._is_part:
            raise ConfigError(
                f"{what}: label it anew with `redo_changed`, or everything with `overwrite`, or name another output; "
                f"what is there stays ({counted(len(done), 'shard')})"
            )
        output.remove(done)
        self._on_note(f"{what}: labelling it anew")

    @property
    def _is_part(self) -> bool:
        return self._settings.limit is not None or self._settings.sample is not None


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


def file_names(planned: Sequence[PlannedInput], known: dict[str, str]) -> dict[str, str]:
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
