"""Where a record was made: machine and software; the state of the GPU in use, as NVIDIA's nvidia-smi tells it; and the
memory that is to be had.
"""

import os
import platform
import subprocess
from datetime import UTC, datetime
from typing import NamedTuple

from pydantic import Field

from ..config.schema import Config
from ..engine.resources import physical_cores, threads
from ..model.placement import RESERVE_BYTES, gpus
from ..native import devices
from ..native.device import instruction_sets
from ..system.control_groups import available_bytes
from .record import Record

_MOST_S = 10.0
"""for the driver to answer"""


class GpuState(Record):
    """The GPU in use; null for values that the driver does not give."""

    name: str = Field(description="name of the card")
    driver: str = Field(description="version of NVIDIA's driver")
    sm_mhz: int | None = Field(description="clock of its multiprocessors")
    max_sm_mhz: int | None = Field(description="the highest clock")


def gpu_state() -> GpuState | None:
    """The first GPU that this process may see, now; None without a GPU or the program of NVIDIA's driver."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if not (first.isdecimal() or first.startswith("GPU-")):  # empty or -1: CUDA is to see none
        return None
    asked = "--query-gpu=name,driver_version,clocks.sm,clocks.max.sm"
    command = ["nvidia-smi", f"--id={first}", asked, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_MOST_S, check=True)
        name, driver, *mhz = done.stdout.strip().split(", ")
        now, highest = (int(clock) if clock.isdecimal() else None for clock in mhz)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return GpuState(name=name, driver=driver, sm_mhz=now, max_sm_mhz=highest)


class Environment(Record):
    """What a time or a score may depend on, besides the configuration."""

    date: str = Field(description="when the record was made: UTC, ISO 8601")
    os: str = Field(description="operating system and its version")
    cpu: str = Field(description="the processor's name")
    instruction_sets: tuple[str, ...] = Field(description="that the CPU code was compiled for, such as AVX2")
    n_cores: int = Field(description="physical cores that the process may use")
    n_threads: int = Field(description="threads that a decode uses on the CPU")
    gpu: GpuState | None = Field(description="the first NVIDIA GPU that the process may see; null where there is none")
    python: str = Field(description="version of Python")


def environment(config: Config) -> Environment:
    """The machine and the software at this moment."""
    return Environment(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        os=platform.platform(),
        cpu=next((device.name for device in devices() if device.kind == "CPU"), platform.processor()),
        instruction_sets=instruction_sets(),
        n_cores=physical_cores(),
        n_threads=threads(config.runtime)[0],
        gpu=gpu_state(),
        python=platform.python_version(),
    )


class FreeMemory(NamedTuple):
    """The memory that a model would go to: the GPUs', or without one the machine's."""

    on_gpu: bool
    free_bytes: int
    """in all"""
    weights_bytes: int
    """of it for weights; on every GPU, or in the machine's memory, something is left for all else"""


def free_memory() -> FreeMemory:
    """What is free at this moment."""
    if seen := gpus():
        free_bytes = [device.free_bytes for device in seen]
        return FreeMemory(True, sum(free_bytes), sum(max(0, n_bytes - RESERVE_BYTES) for n_bytes in free_bytes))
    free = available_bytes()
    return FreeMemory(False, free, max(0, free - RESERVE_BYTES))
