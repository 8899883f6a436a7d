"""Where a benchmark ran: the machine, its GPU's driver and state, the memory in use."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from ..engine.capacity import physical_cores
from ..native import Multiprocessors, devices
from ..native.features import instruction_sets
from ..native.sm_slice import sliced_multiprocessors
from ..score.result import ModelInfo
from .record import Record

_GPU_STATE = ("driver_version", "temperature.gpu", "clocks.sm", "clocks.max.sm", "power.draw", "power.limit", "pstate")


class MachineEnvironment(Record):
    """What a time depends on, besides the configuration."""

    device: str
    """what computed"""
    n_gpu_layers: int
    """layers on the GPU"""
    sm_slice: Multiprocessors | None
    """the part of the GPU that computed; null where that was the whole GPU, or none"""
    driver: str | None
    """of NVIDIA; null without one"""
    cpu: str
    """the processor's name"""
    instruction_sets: tuple[str, ...]
    """that the code for the CPU was compiled for, such as AVX2 or AMX_INT8"""
    n_cores: int
    """physical cores"""
    n_cpus: int | None
    """logical CPUs; null where the system does not tell"""
    n_threads: int
    """threads that a decode uses on the CPU"""
    os: str
    """operating system and its version"""
    machine: str
    """the processor's architecture"""
    python: str
    """version of Python"""
    numpy: str
    """version of numpy"""
    llama_cpp_commit: str
    """of the llama.cpp that was patched"""
    source_digest: str
    """of the patched sources"""
    backend: str
    """CPU, or CUDA with its version"""
    package_version: str
    """of qcls-gguf"""
    model: str
    """the name of the model's file"""
    model_sha256: str
    """sha256 of the model"""
    quantization: str
    """such as Q4_K_M"""
    date: str
    """UTC, ISO 8601"""


def environment(model: ModelInfo, n_threads: int, gpu: dict[str, str] | None) -> MachineEnvironment:
    """The machine now; gpu: what gpu_state returned."""
    return MachineEnvironment(
        device=model.device,
        n_gpu_layers=model.n_gpu_layers,
        sm_slice=sliced_multiprocessors(),
        driver=gpu["driver_version"] if gpu else None,
        cpu=_cpu_name(),
        instruction_sets=instruction_sets(),
        n_cores=physical_cores(),
        n_cpus=os.cpu_count(),
        n_threads=n_threads,
        os=platform.platform(),
        machine=platform.machine(),
        python=platform.python_version(),
        numpy=np.__version__,
        llama_cpp_commit=model.llama_cpp_commit,
        source_digest=model.source_digest,
        backend=model.backend,
        package_version=model.package_version,
        model=Path(model.path).name,
        model_sha256=model.sha256,
        quantization=model.quantization,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _cpu_name() -> str:
    return next((device.name for device in devices() if device.kind == "CPU"), platform.processor())


def gpu_state() -> dict[str, str] | None:
    """Driver, temperature, clocks and power of the first NVIDIA GPU, as nvidia-smi has them; None where it has none."""
    command = ["nvidia-smi", "-i", "0", f"--query-gpu={','.join(_GPU_STATE)}", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    values = [value.strip() for value in said.strip().split(",")]
    return dict(zip(_GPU_STATE, values, strict=True)) if len(values) == len(_GPU_STATE) else None


def gpu_free_bytes() -> int | None:
    """Free memory of all GPUs; None where there is none."""
    free = [device.free_bytes for device in devices() if device.kind in ("GPU", "iGPU")]
    return sum(free) if free else None


def rss_bytes() -> int | None:
    """What the process holds in memory, where the system tells."""
    return _proc_bytes("/proc/self/status", "VmRSS")


def available_bytes() -> int | None:
    """Memory that could be had without swapping, where the system tells."""
    return _proc_bytes("/proc/meminfo", "MemAvailable")


def peak_rss_bytes() -> int | None:
    """The most that the process ever held, where the system tells."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _proc_bytes(path: str, key: str) -> int | None:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:")), None)
