"""The devices that llama.cpp can compute on, their instruction sets, and measurements of their peak rates."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import byref
from dataclasses import dataclass
from functools import cache
from typing import Literal

from . import abi
from .abi import Error, Status, check
from .library import build_info, call, library

_KINDS: tuple[Literal["CPU", "GPU", "iGPU", "other"], ...] = ("CPU", "GPU", "iGPU", "other")
_CPU = -1  # index of the processor
_OPERATIONS = ("copy", "product", "multiply", "read")  # qcls_operation_kind
_NO_INSTRUCTIONS = {"ACCELERATE", "CPU_HBM", "KLEIDIAI", "LLAMAFILE", "OPENMP", "REPACK"}
"""Features that ggml lists but that are no instruction sets: libraries, threading, layouts of weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device that llama.cpp can compute on; memory in bytes."""

    kind: Literal["CPU", "GPU", "iGPU", "other"]
    name: str
    free_bytes: int
    total_bytes: int

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU, with memory of its own or the CPU's."""
        return self.kind in ("GPU", "iGPU")


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """Seconds of one operation on a device: of its samples the best and the median."""

    best_s: float
    median_s: float


def devices() -> Iterator[Device]:
    """The devices that llama.cpp sees, GPUs first."""
    index = 0
    while device := _described(index):
        yield device.to(Device, kind=_KINDS[device.kind])
        index += 1


def sees_cuda_gpu() -> bool:
    """Whether this build computes on CUDA, and CUDA sees a GPU."""
    return build_info().is_cuda and any(device.kind == "GPU" for device in devices())


def cpu_features() -> list[str]:
    """The features that llama.cpp's CPU code was compiled for, under ggml's names, such as AVX2 or OPENMP."""
    cpu = _described(_CPU)
    return cpu.cpu_features.decode().split("\t") if cpu and cpu.cpu_features else []


def cpu_variant() -> str | None:
    """The variant of CPU code that a portable build has chosen, such as haswell; None in a build for one processor."""
    cpu = _described(_CPU)
    return (cpu.cpu_variant.decode() or None) if cpu else None


@cache
def instruction_sets() -> tuple[str, ...]:
    """The instruction sets that llama.cpp's CPU code was compiled for, such as AVX2, AVX512_VNNI, AMX_INT8.

    AMX is listed only if the system lets the process use it.
    """
    return tuple(name for name in cpu_features() if name not in _NO_INSTRUCTIONS)


def _described(index: int) -> abi.Device | None:
    """A device as C describes it; None if there is no such device."""
    device, error = abi.Device(), Error()
    status = library().qcls_device_describe(index, byref(device), byref(error))
    if status == Status.BAD_ARGUMENT:
        return None
    check(status, error)
    return device


def probe(
    operation: Literal["copy", "product", "multiply", "read"],
    device: int,
    *,
    n_threads: int,
    budget_s: float,
    n_bytes: int = 0,
    ggml_type: int = 0,
    n_inner: int = 0,
    n_rows: int = 0,
    n_columns: int = 0,
) -> Probed:
    """The time of an operation on a device, by its index in `devices`; budget_s: about how long all samples take.

    copy: of n_bytes, twice which are needed of its memory; product: of weights of a ggml type, (n_inner, n_rows), with
    n_columns F32 columns. On a CPU also read: of n_bytes of memory, once; multiply: 10^9 operations on registers, by
    the instructions of products of a ggml type, where a multiplication and an addition are two operations.
    Raises PlanError for a number out of range, DecodeError where the device cannot do it, or the products of that type
    are not this project's.
    """
    seconds = abi.Seconds()
    asked = abi.Operation(
        kind=_OPERATIONS.index(operation),
        device=device,
        n_threads=n_threads,
        weight_type=ggml_type,
        n_inner=n_inner,
        n_rows=n_rows,
        n_columns=n_columns,
        n_bytes=n_bytes,
        budget_s=budget_s,
    )
    call("qcls_device_measure", byref(asked), byref(seconds))
    return Probed(best_s=seconds.best, median_s=seconds.median)
