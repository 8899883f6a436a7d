"""The folders for files that are kept between runs, and writing a file so that no reader sees half of it."""

import itertools
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from platformdirs import user_cache_path

from .stops import undone_by_a_stop

PART_SUFFIX = ".part"
"""the ending of a file that is being written; one that a killed process left may be removed"""
_NAME = "qcls-gguf"
_MOST_REMEMBERED = 256
_counter = itertools.count()


def cache_folder() -> Path | None:
    """The user's folder for what can be computed again; None for a user without a home.

    On Linux `$XDG_CACHE_HOME/qcls-gguf`, or `~/.cache/qcls-gguf` where that variable is unset, empty or, as its
    convention asks, a relative path.
    """
    try:
        folder = user_cache_path(_NAME, appauthor=False)
        # older versions of platformdirs take a relative XDG_CACHE_HOME
        folder = folder if folder.is_absolute() else Path.home() / ".cache" / _NAME
    except RuntimeError:  # no home
        return None
    return folder if folder.is_absolute() else None


def part_of(path: Path) -> Path:
    """A name beside a file for its content while it is written, which no other process or call has."""
    return path.with_name(f".{_NAME}-{os.getpid()}-{next(_counter)}{PART_SUFFIX}")


def write_whole(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Write a file by `whole_file`, with the same rights; one that is there keeps its own. Raises OSError."""
    with whole_file(path, mode=mode) as file:
        file.write(content)


@contextmanager
def whole_file(path: Path, *, mode: int = 0o600, on_disk: bool = False) -> Iterator[IO[bytes]]:
    """A file that is written under another name and renamed when it is complete, so that there is always the old file
    or the complete new one. If two write at once, the later one wins.

    mode: the permissions of a new file, reduced by the umask; an existing file keeps its own. on_disk: whether the
    content is synced to the disk before the renaming. Raises OSError, and then leaves no file.
    """
    part = part_of(path)
    part.unlink(missing_ok=True)  # of a process of this number that was killed
    try:
        with undone_by_a_stop(part.unlink):
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
                yield file
                if on_disk:
                    file.flush()
                    os.fsync(file.fileno())
            with suppress(FileNotFoundError):
                if stat.S_ISREG(rights := path.lstat().st_mode):
                    part.chmod(stat.S_IMODE(rights))
            part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def remembered(name: str) -> dict[str, str]:
    """The texts that `remember` kept in a file of this name; empty where it is missing or damaged."""
    folder = cache_folder()
    try:
        found = json.loads((folder / name).read_bytes()) if folder else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return {key: text for key, text in found.items() if isinstance(text, str)} if isinstance(found, dict) else {}


def remember(name: str, key: str, text: str) -> None:
    """Keep a text in the cache folder, beside the last ones. If that fails, the text is computed again next time."""
    folder = cache_folder()
    if folder is None:
        return
    found = [(other, kept) for other, kept in remembered(name).items() if other != key]
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / name, json.dumps(dict([*found, (key, text)][-_MOST_REMEMBERED:])).encode())
