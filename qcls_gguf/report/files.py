"""Files that work writes in the end: refused before it begins, where they could not be written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ..errors import ConfigError


def check_writable(path: Path, name: str, others: Mapping[str, Path | None], *, force: bool = True) -> None:
    """Refuse a file that cannot be written, or that is another file of the same work.

    name: what the path was given as; others: files by what they were given as; force: whether what is there may be
    overwritten. Raises ConfigError.
    """
    try:
        for other_name, other in others.items():
            if other is not None and _is_same(path, other):
                raise ConfigError(f"{name} {path}: is the file of {other_name}: name another")
        if path.exists():
            if not force:
                raise ConfigError(f"{name} {path}: is there already: name another file, or overwrite it with `force`")
            path.open("a").close()
        else:
            path.open("x").close()
            path.unlink()  # what fails later leaves nothing
    except OSError as e:
        raise ConfigError(f"{name} {path}: cannot be written: {e.strerror}") from None


def _is_same(path: Path, other: Path) -> bool:
    """Whether two names are of one file, which need not be there."""
    if os.path.realpath(path) == os.path.realpath(other):
        return True
    return path.exists() and other.exists() and path.samefile(other)
