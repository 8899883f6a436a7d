"""Where a record was made: machine, software and model, the same for every command that writes one."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from ..config.schema import Config
from ..engine.cores import physical_cores, threads
from ..native import devices
from ..native.device import instruction_sets
from ..score.result import ModelInfo
from .gpu import GpuFacts, gpu_facts
from .machine import total_bytes
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
