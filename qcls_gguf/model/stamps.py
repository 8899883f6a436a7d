"""Whether files are still those that were read."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

Stamp = tuple[str, int, int, int]
"""Resolved path, size in bytes, times in ns of the last change of the content and of the file. Programs can set the
first of these times: copies and images often keep it, or give all files the same."""


def stamp_of(path: Path, found: os.stat_result) -> Stamp:
    """The stamp of a file; found: what the system says of it."""
    return str(path.resolve()), found.st_size, found.st_mtime_ns, found.st_ctime_ns


def stamps_of(paths: Iterable[Path]) -> list[Stamp]:
    """The stamps that some files have now."""
    return [stamp_of(path, path.stat()) for path in paths]
