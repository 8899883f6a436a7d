"""The memory in use and to be had, of the machine and of the process.

psutil is imported where it is asked: other commands start sooner.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from ..model.placement import RESERVE_BYTES, gpus, room_bytes
from ..system.control_groups import available_bytes


@dataclass(frozen=True, slots=True)
class ModelRoom:
    """The memory that a model would go to: the GPUs', or without one the machine's."""

    on_gpu: bool
    free_bytes: int
    """in all"""
    weights_bytes: int
    """of it for weights; on each GPU, or in the machine's memory, something is left for all else"""


def model_room() -> ModelRoom:
    """What is free at this moment."""
    found = gpus()
    if found:
        return ModelRoom(True, sum(device.free_bytes for device in found), room_bytes(found))
    free = available_bytes()
    return ModelRoom(False, free, max(0, free - RESERVE_BYTES))


def gpu_free_bytes() -> int | None:
    """Free memory of all GPUs that models are placed on; None where there is none."""
    room = model_room()
    return room.free_bytes if room.on_gpu else None


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
