"""The output folder of a run: its lock, its manifest, and the shards that are done and left."""

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import pyarrow.parquet as pq
from pydantic import Field, JsonValue

from ..config.words import counted
from ..data.rows import FORMATS, PACKED, Format, format_of
from ..errors import ConfigError, QclsError
from ..report.files import LOCK, locked
from ..report.record import Record, json_text
from ..system.folders import PART_SUFFIX
from .answers import KEPT
from .blocks import output_file, written
from .inputs import Input, Shard
from .records import RowCounts, ShardCounts, total_counts

_MANIFEST, _DONE = "manifest.json", "done.jsonl"
_SHARDS = ".shards"
"""the end of the name of the folder of shards that become one file"""
_OURS = re.compile(r".+-\d{5,}\.(parquet|csv|tsv|jsonl)")
ENDINGS: dict[Format, str] = {"parquet": ".parquet", "csv": ".csv", "tsv": ".tsv", "jsonl": ".jsonl", "text": ".csv"}
_KNOWN_ENDINGS = ", ".join(dict.fromkeys(ENDINGS.values()))
RunSettings = Mapping[str, JsonValue]


class Manifest(Record):
    """The settings of a run, and its results."""

    version: Literal[7] = 7
    settings: dict[str, JsonValue] = Field(description="the settings that must be equal when a run is resumed")
    inputs: tuple[Input, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A shard, and the file that it becomes."""

    input: Input
    shard: Shard
    output: str
    """the file's name"""
    header: bool
    """whether it begins with the names of columns, if it is CSV: not where it stands within one file"""


class OutputFolder:
    """The output files with their manifest; a `with` block locks them for one run."""

    def __init__(self, out: Path, format_: Format | None, part: tuple[int, int] = (1, 1)) -> None:
        """out: the folder, or a file into which the shards are joined at the end. format_: of the files; None: the
        format of the input, or that of the file's ending. part: see LabelSettings. Raises ConfigError.
        """
        self.out, self._part = out, part
        self.joined = out if out.suffix.lower() in ENDINGS.values() and not out.is_dir() else None
        """the file into which the shards are joined at the end"""
        is_no_folder = out.suffix.lower() in (*FORMATS, *PACKED, ".json", ".xlsx", ".xls", ".ods", ".feather")
        if self.joined is None and is_no_folder and not out.is_dir():
            raise ConfigError(
                f"`out` {out}: cannot be {out.suffix}: name a file that ends in {_KNOWN_ENDINGS}, or a folder"
            )
        self.format = format_ or (format_of(out) if self.joined else None)
        if self.joined and self.format != format_of(out):
            raise ConfigError(f"`out` {out}: has another ending than `output_format` {self.format}: keep one of them")
        if self.joined and out.exists() and not out.is_file():
            raise ConfigError(f"`out` {out}: is no plain file: name one, which takes its name when it is whole")
        self.folder = out.with_name(out.name + _SHARDS) if self.joined else out
        self.manifest: Manifest | None = None
        """of a run that can be resumed"""
        self.done: dict[str, ShardCounts] = {}
        """the counts of the shards whose files are there, by the files' names"""

    def __enter__(self) -> Self:
        """Make the folder if it is missing, and lock it. Raises ConfigError if another run has locked it, or if it
        cannot be written.
        """
        self._made = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
        self._lock = locked(self.folder, f"name one, or a file that ends in {_KNOWN_ENDINGS}")
        try:
            before = self._read()
            self.done = self._read_done() if before else {}
            self.manifest = before if self.done else None
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Unlock the folder; if no run was begun, remove what was made for it."""
        with suppress(OSError):
            if self._made and not (self.folder / _MANIFEST).exists():
                (self.folder / LOCK).unlink()
                for path in self._made:
                    path.rmdir()
        self._lock.close()

    def _read(self) -> Manifest | None:
        path = self.folder / _MANIFEST
        try:
            if path.exists():
                found = json.loads(path.read_bytes())
                if found["version"] != 7:
                    raise ConfigError(f"{path}: was written by another version of qcls-gguf: name another output")
                return Manifest.model_validate(found)
            others = [path.name for path in self.folder.iterdir() if not path.name.startswith(".")]
        except OSError as e:
            raise ConfigError(f"{path}: cannot be read: {e.strerror}") from None
        except (ValueError, KeyError, TypeError):
            raise ConfigError(f"{path}: is damaged: name another output, or remove the folder") from None
        if others:
            raise ConfigError(
                f"`out` {self.folder}: has files and no {_MANIFEST}, such as {others[0]}: name an empty folder, or one "
                "that is not there yet"
            )
        return None

    def _read_done(self) -> dict[str, ShardCounts]:
        """The shards whose files exist; ignores a last line that a kill has cut off."""
        found = {}
        path = self.folder / _DONE
        with suppress(FileNotFoundError):
            for line in path.read_bytes().split(b"\n"):
                try:
                    counts = ShardCounts.model_validate(json.loads(line))
                    if (self.folder / counts.output).stat().st_size == counts.n_bytes:
                        found[counts.output] = counts
                except (ValueError, OSError):  # ValidationError is a ValueError
                    continue  # the shard is labelled again
        return found

    def check(self, settings: RunSettings) -> None:
        """Raise ConfigError if existing shards were labelled with other settings."""
        before = self.manifest.settings if self.manifest else settings
        other = [name for name in settings if before.get(name) != settings[name]]
        if len(other) > 1 and None in (before.get("inputs"), settings.get("inputs")):
            other = [name for name in other if name != "inputs"]  # which one of the others asks for
        if other:
            changes = ", ".join(f"{name} was {_short(before.get(name))}, is {_short(settings[name])}" for name in other)
            has = f"has {counted(len(self.done), 'shard')} of a run with other settings ({changes})"
            raise ConfigError(
                f"`out` {self.folder}: {has}: keep these settings, name another output, or label everything again "
                "with `overwrite`"
            )

    def tasks(self, inputs: Sequence[Input]) -> list[Task]:
        """All shards, or those of the part, with their output files."""
        shards = [(input_, *numbered) for input_ in inputs for numbered in enumerate(input_.shards)]
        first, step = self._part
        tasks: list[Task] = []
        for input_, number, shard in shards[first - 1 :: step]:
            output = f"{input_.name}-{number:05}{ENDINGS[self.format or input_.format]}"
            tasks.append(Task(input=input_, shard=shard, output=output, header=self.joined is None or not tasks))
        return tasks

    def begin(self, settings: RunSettings, inputs: Sequence[Input]) -> list[Task]:
        """Write the manifest and remove temporary files of killed runs; returns the tasks still to do. Raises
        QclsError.
        """
        missing = [task for task in self.tasks(inputs) if task.output not in self.done]
        kept = {f".{task.output}" for task in missing}
        for path in self.folder.iterdir():
            before, is_kept, _ = path.name.partition(KEPT)
            is_left = before not in kept if is_kept else path.name.endswith(PART_SUFFIX)
            if (path.name.startswith(".") and is_left) or (_OURS.fullmatch(path.name) and path.name not in self.done):
                path.unlink(missing_ok=True)
        manifest = Manifest(settings=dict(settings), inputs=tuple(inputs))
        with output_file(self.folder / _MANIFEST) as file:
            file.write(f"{json_text(manifest.to_dict(), indent=1)}\n".encode())
        with output_file(self.folder / _DONE) as file:
            file.writelines(f"{json_text(counts.to_dict())}\n".encode() for counts in self.done.values())
        return missing

    def kept_path(self, output: str) -> Path:
        """The file that keeps the answers of an unfinished shard, by the name of its output file."""
        return self.folder / f".{output}{KEPT}"

    def add(self, counts: ShardCounts) -> None:
        """Record a shard whose file is complete. Raises QclsError; the shard is then labelled again."""
        self.done[counts.output] = counts
        path = self.folder / _DONE
        with written(path), path.open("ab") as file:
            file.write(f"{json_text(counts.to_dict())}\n".encode())
            file.flush()
            os.fsync(file.fileno())

    def finish(self, tasks: Sequence[Task]) -> RowCounts:
        """Join the files if the output is one file; returns the totals. Raises QclsError."""
        total = total_counts([self.done[task.output] for task in tasks])
        if self.joined is None:
            return total
        assert self.format is not None
        n_bytes = join_files([self.folder / task.output for task in tasks], self.joined, self.format)
        shutil.rmtree(self.folder)
        return total.model_copy(update={"n_bytes": n_bytes})

    def forget(self) -> None:
        """Remove all files of earlier runs. Raises QclsError."""
        try:
            done, kept = (self.folder / name for name in self.done), self.folder.glob(f".*{KEPT}")
            ours = self.folder / _DONE, self.folder / _MANIFEST, *([self.joined] if self.joined else [])
            for path in (*done, *ours, *kept):
                path.unlink(missing_ok=True)
        except OSError as e:
            raise QclsError(f"{self.folder}: could not be overwritten: {e.strerror}") from None
        self.manifest = None
        self.done.clear()


def _short(value: JsonValue) -> str:
    text = value if isinstance(value, str) else "not given" if value is None else json.dumps(value)
    return text if len(text) <= 20 else f"{text[:16]}…"


def join_files(paths: Sequence[Path], out: Path, format_: Format) -> int:
    """Join files into one, which gets its name when it is complete; returns its size.

    Of CSV files only the first has a header. Raises QclsError.
    """
    with output_file(out) as file:
        if format_ == "parquet":
            with pq.ParquetWriter(file, pq.read_schema(paths[0]), compression="zstd") as writer:
                for path in paths:
                    with pq.ParquetFile(path) as part:
                        writer.write_table(part.read())
        else:
            for path in paths:
                with path.open("rb") as part:
                    shutil.copyfileobj(part, file, 1 << 20)
        return file.tell()
