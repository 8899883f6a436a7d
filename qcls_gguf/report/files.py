"""Files that work writes in the end: refused before it begins, where they could not be written, and written last."""

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from ..config.resources import SCHEMA, schema_path
from ..errors import ConfigError, QclsError
from ..system.folders import part_of, write_whole

LOCK = ".lock"
"""the file by which a run keeps others from its folder"""


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


def check_outputs(
    outputs: Mapping[str, Path | None], inputs: Mapping[str, str | Path | None], *, force: bool = True
) -> None:
    """Refuse files that cannot be written, or that are other files of the same work, before anything is computed.

    outputs, inputs: by what they were given as; force: whether what is there may be overwritten. Raises ConfigError.
    """
    others = {name: Path(path) for name, path in inputs.items() if path is not None}
    for name, path in outputs.items():
        if path is None:
            continue
        try:
            for other_name, other in others.items():
                is_same = os.path.realpath(path) == os.path.realpath(other)
                if is_same or (path.exists() and other.exists() and path.samefile(other)):
                    raise ConfigError(f"{name} {path}: is the file of {other_name}: name another")
            if path.exists():
                if not force:
                    what = "is there already: name another file, or overwrite it with `force`"
                    raise ConfigError(f"{name} {path}: {what}")
                path.open("a").close()
            if not path.exists() or path.is_file():
                part = part_of(Path(os.path.realpath(path)))
                part.open("w").close()
                part.unlink()
        except OSError as e:
            raise ConfigError(f"{name} {path}: cannot be written: {e.strerror}") from None
        others[name] = path


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
