"""The number of threads: from the cores that the process may use, and a container's CPU quota."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

from ..config.schema import RuntimeConfig
from ..config.words import counted
from ..system.control_groups import cpu_quota

_LEAST_S = 0.05
"""The system counts in hundredths of a second."""


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


class OtherPrograms:
    """Measures, from its creation on, how busy other programs keep the CPUs that this process may use."""

    def __init__(self, root: Path = Path("/")) -> None:
        """root: where `proc` is looked for."""
        self._root = root
        self._began, self._busy, self._own = time.monotonic(), _busy_s(root), time.process_time()

    def crowding(self, n_threads: int) -> str | None:
        """A warning if other programs left fewer CPUs than there are threads; None otherwise.

        The threads of a decode wait for the slowest one, so a thread that shares its CPU slows down all. A single
        thread waits for none.
        """
        seconds, busy = time.monotonic() - self._began, _busy_s(self._root)
        if n_threads == 1 or seconds < _LEAST_S or busy is None or self._busy is None:
            return None
        n_cpus = len(_usable())
        n_busy = min(n_cpus, (busy - self._busy - (time.process_time() - self._own)) / seconds)
        if n_threads + n_busy <= n_cpus + 0.5:
            return None
        return (
            f"other programs kept {n_busy:.1f} of {n_cpus} CPUs busy meanwhile, so {n_threads} threads wait for each "
            "other, and requests may take many times as long: set n_threads lower"
        )


def _busy_s(root: Path) -> float | None:
    """Seconds for which the CPUs that this process may use have been busy; None if the system does not tell."""
    names = {f"cpu{cpu}" for cpu in _usable()}
    try:
        lines = [line.split() for line in (root / "proc/stat").read_text().splitlines()]
        times = [list(map(int, line[1:9])) for line in lines if line and line[0] in names]
        # user, nice, system, idle, waiting for disks, interrupts, theirs, taken by other virtual machines
        return sum(sum(each) - each[3] - each[4] for each in times) / os.sysconf("SC_CLK_TCK") if times else None
    except (OSError, ValueError, IndexError):
        return None


def _usable() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def physical_cores() -> int:
    """Physical cores that this process may use; hardware threads, if the system does not tell which share a core."""
    usable = _usable()
    siblings = set()
    for cpu in usable:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            siblings.add(topology.read_text())
        except OSError:
            return max(1, len(usable))
    return max(1, len(siblings))
