"""What the control groups of a container leave to this process: CPU time and memory.

Files and their meaning: Linux, Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst and
scheduler/sched-bwc.rst. A group's own limit counts, and those of its parents.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_ROOT = Path("/")


def cpu_quota(root: Path = _ROOT) -> float | None:
    """The least CPU quota in CPUs, such as 1.5; None without a limit. root: where `proc` and `sys` are looked for.

    Version 2 has `cpu.max` (quota and period in µs, or `max`), version 1 `cpu.cfs_quota_us` (-1 for none) and
    `cpu.cfs_period_us`.
    """
    quotas = [quota for folder in _groups("cpu", root) if (quota := _quota(folder)) is not None]
    return min(quotas, default=None)


def memory_left(root: Path = _ROOT) -> int | None:
    """The bytes that the process may still take before a group's limit; None without a limit.

    Version 2 has `memory.max` (or `max`) and `memory.current`, version 1 `memory.limit_in_bytes` and
    `memory.usage_in_bytes`. Pages of files that were not used lately count as used there, but are given up first.
    """
    left = [n_bytes for folder in _groups("memory", root) if (n_bytes := _left(folder)) is not None]
    return min(left, default=None)


def available_bytes(root: Path = _ROOT) -> int:
    """Memory that could be had without swapping, of the machine and of the groups."""
    import psutil  # late: most commands need not ask

    available = int(psutil.virtual_memory().available)
    left = memory_left(root)
    return available if left is None else min(available, left)


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """The folders of the process's control groups for a controller and of their parents, as far as they can be seen."""
    mount = root / "sys/fs/cgroup"
    lines = []
    with suppress(OSError, UnicodeDecodeError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and controller not in controllers.split(","):
            continue
        # A container may see its own group as the top of the tree, under the path that the host has for it.
        parts = [part for part in path.split("/") if part not in ("", ".", "..")]
        for top in (mount / controllers, mount / controller) if controllers else (mount, mount / "unified"):
            for n in range(len(parts), -1, -1):
                yield top.joinpath(*parts[:n])


def _quota(folder: Path) -> float | None:
    for quota_file, period_file in (("cpu.max", None), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        with suppress(OSError, ValueError, IndexError):
            words = (folder / quota_file).read_text().split()
            period = words[1] if period_file is None else (folder / period_file).read_text()
            quota, length = float(words[0]), float(period)  # `max` is no number: no limit
            if quota > 0 and length > 0 and math.isfinite(quota):
                return quota / length
    return None


def _left(folder: Path) -> int | None:
    for limit_file, used_file, unused in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        with suppress(OSError, ValueError):
            limit, used = (int((folder / name).read_text()) for name in (limit_file, used_file))
            return max(0, limit - used + _statistic(folder, unused))
    return None


def _statistic(folder: Path, name: str) -> int:
    with suppress(OSError, ValueError, KeyError):
        return int(dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())[name])
    return 0
