"""Where a record was made: machine and software; and the memory in use and to be had.

psutil is imported where it is asked: other commands start sooner.
"""

from __future__ import annotations

import platform
import resource
import sys
from dataclasses import dataclass
from datetime import UTC, datetime

from ..config.schema import Config
from ..engine.cores import physical_cores, threads
from ..model.placement import RESERVE_BYTES, gpus, room_bytes
from ..native import devices
from ..native.device import instruction_sets
from ..system.control_groups import available_bytes
from .gpu import GpuState, gpu_state
from .record import Record


class Environment(Record):
    """What a time or a score may depend on, besides the configuration."""

    date: str
    """when the record was made: UTC, ISO 8601"""
    os: str
    """operating system and its version"""
    cpu: str
    """the processor's name"""
    instruction_sets: tuple[str, ...]
    """instruction sets that the CPU code was compiled for, such as AVX2 or AMX_INT8"""
    n_cores: int
    """physical cores that the process may use"""
    n_threads: int
    """threads that a decode uses on the CPU"""
    gpu: GpuState | None
    """the first NVIDIA GPU that the process may see, when the record was made; null if it cannot be queried"""
    python: str
    """version of Python"""


def environment(config: Config) -> Environment:
    """The machine and the software at this moment."""
    return Environment(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        os=platform.platform(),
        cpu=next((device.name for device in devices() if device.kind == "CPU"), platform.processor()),
        instruction_sets=instruction_sets(),
        n_cores=physical_cores(),
        n_threads=threads(config.runtime).n,
        gpu=gpu_state(),
        python=platform.python_version(),
    )


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


def peak_rss_bytes() -> int:
    """The most that the process ever held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
