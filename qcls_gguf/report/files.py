"""Files that are written at the end of long work, checked at its beginning."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ..errors import ConfigError


def check_writable(path: Path, option: str, others: Mapping[str, Path | None], *, force: bool = True) -> None:
    """Raise ConfigError for a file that could not be written later, or that is another file of the command.

    option: what named the path; others: further files by the options that name them; force: whether a file that exists
    may be overwritten.
    """
    try:
        for name, other in others.items():
            if other is not None and _is_same(path, other):
                raise ConfigError(f"{option} {path}: is the file of {name}: name another")
        if path.exists():
            if not force:
                raise ConfigError(f"{option} {path}: is there already: name another file, or overwrite it with --force")
            path.open("a").close()
        else:
            path.open("x").close()
            path.unlink()  # a command that fails later leaves no empty file
    except OSError as e:
        raise ConfigError(f"{option} {path}: cannot be written: {e.strerror}") from None


def _is_same(path: Path, other: Path) -> bool:
    """Whether two names are of one file, which need not be there."""
    if os.path.realpath(path) == os.path.realpath(other):
        return True
    return path.exists() and other.exists() and path.samefile(other)
