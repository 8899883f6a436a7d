"""Where a record was made: machine, software, model and configuration, the same for every command that writes one."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from ..config.schema import Config
from ..engine.capacity import n_threads, physical_cores
from ..native import devices
from ..native.sm_slice import slice_record
from ..score.result import ModelInfo
from .gpu import GpuFacts, gpu_facts
from .machine import total_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What a time or a score may depend on, besides the configuration. None stands for what is not known here."""

    date: str
    """when the record was made: ISO 8601, UTC"""
    os: str
    machine: str
    """the processor's architecture"""
    cpu: str
    n_cores: int
    """physical ones that this process may use"""
    n_cpus: int | None
    """logical ones of the machine"""
    n_threads: int
    """that computed"""
    memory_bytes: int
    """main memory of the machine"""
    device: str
    """what the model's layers ran on"""
    n_gpu_layers: int
    gpu: GpuFacts | None
    """the first NVIDIA GPU that this process may see"""
    sm_slice: dict[str, Any] | None
    """multiprocessors computed on, where not on all of them"""
    backend: str
    llama_cpp_commit: str
    source_digest: str
    """of the patches and native sources of this package"""
    package_version: str
    python: str
    numpy: str
    model: str
    """the file's name"""
    model_sha256: str
    quantization: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        return asdict(self)


def environment(config: Config, model: ModelInfo) -> Environment:
    """The machine and the software at this moment, with the model that is loaded."""
    return Environment(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        os=platform.platform(),
        machine=platform.machine(),
        cpu=next((device.name for device in devices() if device.kind == "CPU"), platform.processor()),
        n_cores=physical_cores(),
        n_cpus=os.cpu_count(),
        n_threads=n_threads(config.runtime),
        memory_bytes=total_bytes(),
        device=model.device,
        n_gpu_layers=model.n_gpu_layers,
        gpu=gpu_facts(),
        sm_slice=slice_record(),
        backend=model.backend,
        llama_cpp_commit=model.llama_cpp_commit,
        source_digest=model.source_digest,
        package_version=model.package_version,
        python=platform.python_version(),
        numpy=np.__version__,
        model=Path(model.path).name,
        model_sha256=model.sha256,
        quantization=model.quantization,
    )


def plain_config(config: Config) -> dict[str, Any]:
    """The configuration as JSON has it."""
    plain: dict[str, Any] = TypeAdapter(Config).dump_python(config, mode="json")
    return plain
