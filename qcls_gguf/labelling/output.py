"""The folder that a run writes to: who has it, what it was begun with, and which shards are done."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

from pydantic import ValidationError

from ..config.words import counted
from ..errors import ConfigError, QclsError
from ..report.json_text import json_text
from ..system.folders import PART_SUFFIX
from .inputs import Stamp
from .records import ShardCounts
from .shards import PlannedInput, Shard
from .writing import ENDINGS, whole_file

MANIFEST, DONE, LOCK = "manifest.json", "done.jsonl", ".lock"
_VERSION = 1
_OURS = re.compile(r".+-\d{5,}\.(parquet|csv|tsv|jsonl)")
Settings = Mapping[str, Any]


class OutputFolder:
    """A folder of output files with its manifest, which one run has at a time."""

    def __init__(self, folder: Path, joined: Path | None = None) -> None:
        """Take the folder, which is made if it is missing. joined: the one file that its files become in the end.

        Raises ConfigError where another run has it, or where it cannot be written.
        """
        self.folder = folder
        self.joined = joined
        self._log: IO[bytes] | None = None
        if joined is not None and joined.exists() and not joined.is_file():
            raise ConfigError(f"`out` {joined}: is no plain file: name one, which takes its name when it is whole")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = (folder / LOCK).open("ab")
        except FileExistsError:
            endings = ", ".join(dict.fromkeys(ENDINGS.values()))
            raise ConfigError(f"`out` {folder}: is no folder: name one, or a file that ends in {endings}") from None
        except OSError as e:
            raise ConfigError(f"`out` {folder}: cannot be written: {e.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            self._lock.close()
            if not isinstance(e, BlockingIOError):
                raise ConfigError(f"`out` {folder}: cannot be locked: {e.strerror}") from None
            raise ConfigError(
                f"`out` {folder}: another run is writing there: wait until it has ended, or name another output"
            ) from None
        try:
            self.manifest = self._read()
            self.done = self._read_done() if self.manifest else {}
        except BaseException:
            self.close()
            raise

    def _read(self) -> dict[str, Any]:
        path = self.folder / MANIFEST
        try:
            if not path.exists():
                # An empty list of shards is left where the disk was full for the manifest of a first run.
                others = [
                    each.name
                    for each in self.folder.iterdir()
                    if not each.name.startswith(".") and (each.name != DONE or each.stat().st_size > 0)
                ]
                if others:
                    raise ConfigError(
                        f"`out` {self.folder}: has files and no {MANIFEST}, such as {others[0]}: name an empty folder, "
                        "or one that is not there yet"
                    )
                return {}
            found = json.loads(path.read_bytes())
            if found["version"] != _VERSION:
                raise ConfigError(f"{path}: was written by another version of qcls-gguf: name another output")
        except OSError as e:
            raise ConfigError(f"{path}: cannot be read: {e.strerror}") from None
        except (ValueError, KeyError, TypeError):
            raise ConfigError(f"{path}: is damaged: name another output, or remove the folder") from None
        return dict(found)

    def _read_done(self) -> dict[str, ShardCounts]:
        """The shards whose files are there, by the files' names; what a kill left of a last line does not count."""
        found = {}
        path = self.folder / DONE
        with suppress(FileNotFoundError):
            for line in path.read_bytes().split(b"\n"):
                try:
                    counts = ShardCounts.model_validate_json(line)
                    if self.is_joined or (self.folder / counts.output).stat().st_size == counts.n_bytes:
                        found[counts.output] = counts
                except (ValidationError, OSError):
                    continue  # the shard is labelled again
        return found

    @property
    def is_joined(self) -> bool:
        """Whether the one file has all shards already, which are not there any more then."""
        n_bytes = (self.manifest.get("totals") or {}).get("joined_bytes")
        try:
            return self.joined is not None and n_bytes is not None and self.joined.stat().st_size == n_bytes
        except OSError:
            return False

    def check_joined(self) -> None:
        """Raise ConfigError where the one file is there and is not what earlier runs made of it."""
        if self.joined is None or not self.joined.exists():
            return
        what = f"`out` {self.joined}: is there already, and "
        remedy = "name another output, or replace it with `overwrite`"
        if not self.manifest:
            raise ConfigError(f"{what}{self.folder} knows of no run that wrote it: {remedy}")
        n_bytes = (self.manifest.get("totals") or {}).get("joined_bytes")
        if n_bytes is not None and not self.is_joined:
            n_now = self.joined.stat().st_size
            raise ConfigError(f"{what}was changed since it was written ({n_bytes} bytes then, {n_now} now): {remedy}")

    def check(self, settings: Settings) -> None:
        """Raise ConfigError where the manifest was begun with other settings."""
        before = self.manifest.get("settings", {})
        other = [name for name in settings if before.get(name) != _as_json(settings[name])]
        if self.manifest and other:
            changes = ", ".join(f"{name} was {_short(before.get(name))}, is {_short(settings[name])}" for name in other)
            raise ConfigError(
                f"`out` {self.folder}: {counted(len(self.done), 'shard')} of another configuration there ({changes}): "
                "name another output, or label everything anew with `overwrite`"
            )

    def inputs(self) -> dict[str, PlannedInput]:
        """The planned inputs of the manifest, by their paths."""
        found = {}
        for each in self.manifest.get("inputs", []):
            shards = tuple(_shard(shard, each) for shard in each["shards"])
            found[each["path"]] = PlannedInput(
                path=each["path"],
                format=each["format"],
                stamp=Stamp(**each["stamp"]),
                columns=each["columns"],
                shards=shards,
            )
        return found

    def names(self) -> dict[str, str]:
        """By the path of an input what the names of its files begin with."""
        return {each["path"]: each["name"] for each in self.manifest.get("inputs", [])}

    def begin(
        self, settings: Settings, provenance: Settings, inputs: Sequence[PlannedInput], names: Mapping[str, str]
    ) -> None:
        """Write the manifest, and forget shards that are not done. Raises QclsError."""
        self.manifest = {
            "version": _VERSION,
            "config_hash": settings_hash(settings),
            "settings": _as_json(settings),
            "provenance": _as_json(provenance),
            "inputs": [_input(each, names[each.path]) for each in inputs],
            "totals": self.manifest.get("totals") if self.is_joined else None,
        }
        self._remove_rest()
        with whole_file(self.folder / DONE) as file:
            for counts in self.done.values():
                file.write(f"{json_text(counts.to_dict())}\n".encode())
        self._write()
        try:
            self._log = (self.folder / DONE).open("ab")
        except OSError as e:
            raise QclsError(f"{self.folder / DONE}: could not be written: {e.strerror}") from None

    def add(self, counts: ShardCounts) -> None:
        """Note a shard whose file has its name. Raises QclsError; the shard is labelled again then."""
        assert self._log is not None
        self.done[counts.output] = counts
        try:
            self._log.write(f"{json_text(counts.to_dict())}\n".encode())
            self._log.flush()
            os.fsync(self._log.fileno())
        except OSError as e:
            raise QclsError(f"{self.folder / DONE}: could not be written: {e.strerror}") from None

    def finish(self, totals: Settings) -> None:
        """Write what all shards come to. Raises QclsError."""
        self.manifest["totals"] = _as_json(totals)
        self._write()

    def forget(self) -> None:
        """Remove all files of earlier runs. Raises QclsError."""
        try:
            for counts in self.done.values():
                (self.folder / counts.output).unlink(missing_ok=True)
            (self.folder / DONE).unlink(missing_ok=True)
            (self.folder / MANIFEST).unlink(missing_ok=True)
        except OSError as e:
            raise QclsError(f"{self.folder}: could not be overwritten: {e.strerror}") from None
        self.manifest, self.done = {}, {}

    def remove(self, names: Sequence[str]) -> None:
        """Remove some output files, which are to be made anew."""
        for name in names:
            self.done.pop(name, None)
            (self.folder / name).unlink(missing_ok=True)

    def _remove_rest(self) -> None:
        """What killed runs left: parts of files, and files that were not noted yet."""
        for path in self.folder.iterdir():
            is_part = path.name.startswith(".") and path.name.endswith(PART_SUFFIX)
            if is_part or (_OURS.fullmatch(path.name) and path.name not in self.done):
                path.unlink(missing_ok=True)

    def _write(self) -> None:
        with whole_file(self.folder / MANIFEST) as file:
            file.write(f"{json_text(self.manifest, indent=1)}\n".encode())

    def close(self) -> None:
        """Let other runs have the folder."""
        if self._log is not None:
            with suppress(OSError):  # what could not be written was told when it was added
                self._log.close()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def settings_hash(settings: Settings) -> str:
    """A sha256 of what a run must have in common with those that it goes on from."""
    return hashlib.sha256(json.dumps(_as_json(settings), sort_keys=True).encode()).hexdigest()


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


def _input(planned: PlannedInput, name: str) -> dict[str, Any]:
    plain = dataclasses.asdict(planned)
    shards = [{key: value for key, value in shard.items() if key not in ("path", "format")}
              for shard in plain["shards"]]  # fmt: skip
    return {**plain, "name": name, "shards": shards}


def _shard(plain: dict[str, Any], planned: dict[str, Any]) -> Shard:
    keep = plain.pop("keep")
    return Shard(**plain, path=planned["path"], format=planned["format"], keep=None if keep is None else tuple(keep))


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 20 else f"{text[:16]}…"
