"""Files that work writes in the end: refused before it begins, where they could not be written, and written last.

What was measured is printed before any file is written, and a file takes its name only when it is whole: a full disk
loses neither the new measurement nor the old report.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..config.resources import SCHEMA, schema_path
from ..errors import ConfigError, QclsError
from ..system.folders import part_of, write_whole

LOCK = ".lock"
"""the file by which a run keeps others from its folder"""


@dataclass(frozen=True, slots=True)
class Output:
    """A file to write."""

    name: str
    """the name of the setting that gave the path, such as an option"""
    path: Path
    text: Callable[[], str | bytes]
    """makes the content"""


def show_and_write(show: Callable[[], None], outputs: Sequence[Output]) -> None:
    """Print, then write the files; each of them whatever became of those before it.

    Raises QclsError for all that could not be written, and BrokenPipeError where the reader of the output has left.
    """
    failed: list[str] = []
    left: BrokenPipeError | None = None
    try:
        show()
        sys.stdout.flush()
    except BrokenPipeError as e:
        left = e
    except OSError as e:
        failed.append(f"standard output could not be written: {e.strerror}")
    for output in outputs:
        try:
            write_file(output.path, output.text(), output.name)
        except QclsError as e:
            failed.append(str(e))
    if failed:
        raise QclsError("; ".join(failed))
    if left:
        raise left


def write_schema(config: Path) -> Path | None:
    """Put the JSON Schema, for editors, beside a configuration; None where a file of its name is there.

    Raises QclsError where it cannot be written.
    """
    schema = config.with_name(SCHEMA)
    if not config.is_file() or schema.exists():
        return None
    write_file(schema, schema_path().read_bytes(), "the schema")
    return schema


def write_file(path: Path, text: str | bytes, name: str) -> None:
    """Write a text beside the file and rename it when it is whole, so that the old content stays where writing fails.

    What is no plain file, such as a device or a pipe, is written to as it is. Bytes of a path that are no UTF-8 are
    written as escapes, such as `\\udcff`. Raises QclsError, which says name and path.
    """
    content = text if isinstance(text, bytes) else text.encode(errors="backslashreplace")
    target = Path(os.path.realpath(path))  # the file of a link, not the link, is replaced
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(content)
            return
        write_whole(target, content, mode=0o666)
    except OSError as e:
        raise QclsError(f"{name} {path}: could not be written: {e.strerror}") from None


def check_writable(path: Path, name: str, others: Mapping[str, Path | None], *, force: bool = True) -> None:
    """Refuse a file that cannot be written, or that is another file of the same work.

    name: what the path was given as; others: files by what they were given as; force: whether what is there may be
    overwritten. Raises ConfigError.
    """
    try:
        for other_name, other in others.items():
            if other is None:
                continue
            is_same = os.path.realpath(path) == os.path.realpath(other)
            if is_same or (path.exists() and other.exists() and path.samefile(other)):
                raise ConfigError(f"{name} {path}: is the file of {other_name}: name another")
        if path.exists():
            if not force:
                raise ConfigError(f"{name} {path}: is there already: name another file, or overwrite it with `force`")
            path.open("a").close()
        if not path.exists() or path.is_file():
            part = part_of(Path(os.path.realpath(path)))
            part.open("w").close()
            part.unlink()
    except OSError as e:
        raise ConfigError(f"{name} {path}: cannot be written: {e.strerror}") from None


def locked(folder: Path, no_folder: str) -> IO[bytes]:
    """The open lock file of a folder, which is made where it is not there; whoever holds it may remove the folder.

    no_folder: what to do where the path is no folder. Raises ConfigError, also if another run has locked it.
    """
    lock = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("ab")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(lock.fileno()), (folder / LOCK).stat()):  # a run that ended has removed it
            raise BlockingIOError
        return lock
    except OSError as e:
        if lock is not None:
            lock.close()
        why = f"cannot be {'written' if lock is None else 'locked'}: {e.strerror}"
        if isinstance(e, FileExistsError):
            why = f"is no folder: {no_folder}"
        if isinstance(e, BlockingIOError):
            why = "another run is writing there: wait until it has ended, or name another output"
        raise ConfigError(f"`out` {folder}: {why}") from None
