"""What the control groups of a container leave to this process: CPU time and memory.

Files and their meaning: Linux, Documentation/admin-guide/cgroup-v2.rst. A group's own limit counts, and those of its
parents. Groups of version 1 are not read: systemd and Kubernetes have given them up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_ROOT = Path("/")


def cpu_quota(root: Path = _ROOT) -> float | None:
    """The least CPU quota in CPUs, such as 1.5; None without a limit. root: where `proc` and `sys` are looked for.

    `cpu.max` has quota and period in µs, or `max`.
    """
    return min((quota for quota in map(_quota, _groups(root)) if quota is not None), default=None)


def memory_left(root: Path = _ROOT) -> int | None:
    """The bytes that the process may still take before a group's limit; None without a limit.

    That is `memory.max` (or `max`) less `memory.current`. Pages of files that were not used lately count as used there,
    but are given up first.
    """
    return min((left for left in map(_left, _groups(root)) if left is not None), default=None)


def available_bytes(root: Path = _ROOT) -> int:
    """Memory that could be had without swapping, of the machine and of the groups."""
    import psutil  # late: most commands need not ask

    available = int(psutil.virtual_memory().available)
    left = memory_left(root)
    return available if left is None else min(available, left)


def _groups(root: Path) -> Iterator[Path]:
    """The folders of the process's control group and of its parents, as far as they can be seen."""
    lines = []
    with suppress(OSError, UnicodeDecodeError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    for line in lines:
        if line.startswith("0::"):
            # A container may see its own group as the top of the tree, under the path that the host has for it.
            parts = [part for part in line.removeprefix("0::").split("/") if part not in ("", ".", "..")]
            for n in range(len(parts), -1, -1):
                yield root.joinpath("sys/fs/cgroup", *parts[:n])


def _quota(folder: Path) -> float | None:
    with suppress(OSError, ValueError):
        quota, period = map(float, (folder / "cpu.max").read_text().split())  # `max` is no number: no limit
        if quota > 0 and period > 0 and math.isfinite(quota):
            return quota / period
    return None


def _left(folder: Path) -> int | None:
    with suppress(OSError, ValueError):
        limit, used = (int((folder / name).read_text()) for name in ("memory.max", "memory.current"))
        return max(0, limit - used + _unused(folder))
    return None


def _unused(folder: Path) -> int:
    with suppress(OSError, ValueError, KeyError):
        return int(dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())["inactive_file"])
    return 0
