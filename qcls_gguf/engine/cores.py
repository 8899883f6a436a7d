"""The number of threads: from the cores that the process may use, and a container's CPU quota."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from ..config.schema import RuntimeConfig
from ..config.words import counted
from ..system.control_groups import cpu_quota


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
        why, slow = "as configured", "requests may take many times as long"
        if runtime.n_threads > n_cores:
            why += f", more than {counted(n_cores, 'core')}: {slow}"
        elif runtime.n_threads == n_cores > 1:
            why += f", one for every core: while other programs work, {slow}"
        return Threads(n=runtime.n_threads, why=why)
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
