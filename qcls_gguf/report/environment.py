"""Where a record was made: machine, software and model; and the memory in use and to be had.

psutil is imported where it is asked: other commands start sooner.
"""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from ..config.schema import Config
from ..engine.cores import physical_cores, threads
from ..model.placement import RESERVE_BYTES, gpus, room_bytes
from ..native import devices
from ..native.device import instruction_sets
from ..score.result import ModelInfo
from ..system.control_groups import available_bytes
from .gpu import GpuFacts, gpu_facts
from .record import Record


class Environment(Record):
    """What a time or a score may depend on, besides the configuration."""

    date: str
    """when the record was made: UTC, ISO 8601"""
    os: str
    """operating system and its version"""
    machine: str
    """the processor's architecture"""
    cpu: str
    """the processor's name"""
    instruction_sets: tuple[str, ...]
    """instruction sets that the CPU code was compiled for, such as AVX2 or AMX_INT8"""
    n_cores: int
    """physical cores that the process may use"""
    n_cpus: int | None
    """logical CPUs of the machine; null where the system does not tell"""
    n_threads: int
    """threads that a decode uses on the CPU"""
    memory_bytes: int
    """main memory of the machine"""
    device: str
    """the device that computed the model's layers"""
    n_gpu_layers: int
    """layers on the GPU"""
    gpu: GpuFacts | None
    """the first NVIDIA GPU that the process may see; null if there is none or it cannot be queried"""
    backend: str
    """CPU, or CUDA with its version"""
    llama_cpp_commit: str
    """commit of the patched llama.cpp"""
    source_digest: str
    """digest of the patched sources"""
    package_version: str
    """version of qcls-gguf"""
    python: str
    """version of Python"""
    numpy: str
    """version of numpy"""
    model: str
    """the name of the model's file"""
    model_sha256: str
    """sha256 of the model"""
    quantization: str
    """type of the weights, such as Q4_K_M"""
    n_lane_ordered: int
    """matrices whose weights were rearranged for the GPU's kernels: lane order"""


def environment(config: Config, model: ModelInfo) -> Environment:
    """The machine and the software at this moment, with the model that is loaded."""
    return Environment(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        os=platform.platform(),
        machine=platform.machine(),
        cpu=next((device.name for device in devices() if device.kind == "CPU"), platform.processor()),
        instruction_sets=instruction_sets(),
        n_cores=physical_cores(),
        n_cpus=os.cpu_count(),
        n_threads=threads(config.runtime).n,
        memory_bytes=total_bytes(),
        device=model.device,
        n_gpu_layers=model.n_gpu_layers,
        gpu=gpu_facts(),
        backend=model.backend,
        llama_cpp_commit=model.llama_cpp_commit,
        source_digest=model.source_digest,
        package_version=model.package_version,
        python=platform.python_version(),
        numpy=np.__version__,
        model=Path(model.path).name,
        model_sha256=model.sha256,
        quantization=model.quantization,
        n_lane_ordered=model.n_lane_ordered,
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
