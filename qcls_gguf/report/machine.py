"""The memory in use and to be had, of the machine and of the process.

psutil is imported where it is asked: other commands start sooner.
"""

from __future__ import annotations

import sys

from ..model.placement import gpus


def gpu_free_bytes() -> int | None:
    """Free memory of all GPUs that models are placed on; None where there is none."""
    free = [device.free_bytes for device in gpus()]
    return sum(free) if free else None


def rss_bytes() -> int:
    """What the process holds in memory."""
    import psutil

    return int(psutil.Process().memory_info().rss)


def total_bytes() -> int:
    """Main memory of the machine."""
    import psutil

    return int(psutil.virtual_memory().total)


def peak_rss_bytes() -> int | None:
    """The most that the process ever held, where the system tells."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
