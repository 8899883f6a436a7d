"""What the control groups of a container leave to this process: CPU time and memory.

Files and their meaning: Linux, Documentation/admin-guide/cgroup-v2.rst, and cgroup-v1 beside it (CentOS 7, older
Docker). A group's own limit counts, and those of its parents.
"""

import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_ROOT = Path("/")
_NO_LIMIT = 1 << 60


def cpu_quota(root: Path = _ROOT) -> float | None:
    """The least CPU quota in CPUs, such as 1.5; None without a limit. root: where `proc` and `sys` are looked for."""
    return min((quota for folder in _groups(root) if (quota := _quota(folder)) is not None), default=None)


def available_bytes(root: Path = _ROOT) -> int:
    """Memory that could be had without swapping, of the machine and before a group's limit.

    Pages of files that were not used lately count as used in a group, but are given up first.
    """
    import psutil  # late: most commands need not ask

    limits = [left for folder in _groups(root) if (left := _left(folder)) is not None]
    return min([int(psutil.virtual_memory().available), *limits])


def _groups(root: Path) -> Iterator[Path]:
    """The folders of the process's control groups and of their parents, as far as they can be seen."""
    lines = []
    with suppress(OSError, UnicodeDecodeError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2) if line.count(":") > 1 else ("", "other", "")
        names = [controllers, *controllers.split(",")]  # of folders in version 1, often both; version 2 names none
        if {"", "cpu", "memory"}.intersection(names):
            # A container may see its own group as the top of the tree, under the path that the host has for it.
            parts = [part for part in path.split("/") if part not in ("", ".", "..")]
            for n in range(len(parts), -1, -1):
                yield from (root.joinpath("sys/fs/cgroup", name, *parts[:n]) for name in dict.fromkeys(names))


def _quota(folder: Path) -> float | None:
    """Of `cpu.max`, or of two files in version 1: a quota and a period in µs; `max` or -1 is no limit."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        with suppress(OSError, ValueError):
            quota, period = map(float, " ".join((folder / name).read_text() for name in names).split())
            if quota > 0 and period > 0 and math.isfinite(quota):
                return quota / period
    return None


def _left(folder: Path) -> int | None:
    """The limit less what is used; `max` is none, nor is a number of bytes that no machine has."""
    for limit, used, idle in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        with suppress(OSError, ValueError):
            left = int((folder / limit).read_text()) - int((folder / used).read_text())
            with suppress(OSError, ValueError, KeyError):
                left += int(dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())[idle])
            if left < _NO_LIMIT:
                return max(0, left)
    return None
