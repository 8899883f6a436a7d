"""The number of threads: from the cores that the process may use, and a container's CPU quota."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..config.schema import RuntimeConfig
from ..config.words import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Threads:
    """The number of threads of a decode on the CPU, with the reason for it."""

    n: int
    why: str

    def __str__(self) -> str:
        return f"{counted(self.n, 'thread')} ({self.why})"


def threads(runtime: RuntimeConfig, *, root: Path = Path("/")) -> Threads:
    """The configured threads, else all cores but one.

    A busy neighbour on the last core can make a decode a hundred times slower.

    A control group's quota limits them further: threads that have used it up are stopped until its next period.
    root: where `proc` and `sys` are looked for.
    """
    n_cores = physical_cores()
    if runtime.n_threads != "auto":
        slow = f", more than {counted(n_cores, 'core')}: requests may take many times as long"
        return Threads(n=runtime.n_threads, why=f"as configured{slow if runtime.n_threads > n_cores else ''}")
    n_free = max(1, n_cores - 1)
    quota = cpu_quota(root)
    if quota is not None and quota < n_free:
        return Threads(n=max(1, math.floor(quota)), why=f"a quota of {quota:.3g} CPUs, {n_cores} cores")
    return Threads(n=n_free, why=f"{counted(n_cores, 'core')}{' less one' * (n_cores > 1)}")


def physical_cores() -> int:
    """Physical cores that this process may use; hardware threads, if the system does not tell which share a core."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    siblings = set()
    for cpu in usable:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            siblings.add(topology.read_text())
        except OSError:
            return max(1, len(usable))
    return max(1, len(siblings))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """The CPU quota of this process's control groups in CPUs, such as 1.5; None without a limit.

    Version 2 has `cpu.max` (quota and period in µs, or `max`), version 1 `cpu.cfs_quota_us` (-1 for none) and
    `cpu.cfs_period_us`: Linux, Documentation/admin-guide/cgroup-v2.rst and scheduler/sched-bwc.rst. The smallest of
    the group's own quota and its parents' counts.
    """
    quotas = [quota for folder in _groups(root) if (quota := _quota(folder)) is not None]
    return min(quotas, default=None)


def _groups(root: Path) -> Iterator[Path]:
    """The folders of the process's control groups for CPU time and of their parents, as far as they can be seen."""
    mount = root / "sys/fs/cgroup"
    lines = []
    with suppress(OSError, UnicodeDecodeError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        # A container may see its own group as the top of the tree, under the path that the host has for it.
        parts = [part for part in path.split("/") if part not in ("", ".", "..")]
        for top in (mount / controllers, mount / "cpu") if controllers else (mount, mount / "unified"):
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
