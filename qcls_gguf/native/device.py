"""The devices that llama.cpp can compute on, their instruction sets, and measurements of their peak rates."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import byref
from dataclasses import dataclass
from functools import cache
from typing import Literal

from . import abi
from .abi import Error, Status, check, int32
from .library import build_info, library

_KINDS: tuple[Literal["CPU", "GPU", "iGPU", "other"], ...] = ("CPU", "GPU", "iGPU", "other")
_CPU = -1  # index of the processor
_PRODUCT, _MULTIPLY, _READ = 1, 2, 3  # qcls_operation_kind
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


def probe_copy(device: int, *, n_threads: int, n_bytes: int, budget_s: float) -> Probed:
    """Copy n_bytes on a device, by its index in `devices`; twice n_bytes of its memory are needed.

    Raises PlanError for a number out of range, DecodeError where the device cannot do it.
    """
    return _measured(abi.Operation(device=device, n_threads=n_threads, n_bytes=n_bytes, budget_s=budget_s))


def probe_matmul(
    device: int, *, n_threads: int, ggml_type: int, n_inner: int, n_rows: int, n_columns: int, budget_s: float
) -> Probed:
    """Multiply weights of a ggml type, (n_inner, n_rows), with n_columns F32 columns; raises as `probe_copy`."""
    product = abi.Operation(
        kind=_PRODUCT,
        device=device,
        n_threads=n_threads,
        weight_type=int32(ggml_type, "ggml_type"),
        n_inner=n_inner,
        n_rows=n_rows,
        n_columns=n_columns,
        budget_s=budget_s,
    )
    return _measured(product)


def probe_multiply(device: int, *, n_threads: int, ggml_type: int, budget_s: float) -> Probed:
    """Do 10^9 operations on a CPU's registers, by the instructions that products of a ggml type use.

    A multiplication and an addition are two operations. Raises as `probe_copy`; DecodeError also where those products
    are not this project's.
    """
    return _measured(
        abi.Operation(
            kind=_MULTIPLY,
            device=device,
            n_threads=n_threads,
            weight_type=int32(ggml_type, "ggml_type"),
            budget_s=budget_s,
        )
    )


def probe_read(device: int, *, n_threads: int, n_bytes: int, budget_s: float) -> Probed:
    """Read n_bytes of a CPU's memory once; raises as `probe_copy`."""
    return _measured(abi.Operation(kind=_READ, device=device, n_threads=n_threads, n_bytes=n_bytes, budget_s=budget_s))


def _measured(operation: abi.Operation) -> Probed:
    seconds, error = abi.Seconds(), Error()
    check(library().qcls_device_measure(byref(operation), byref(seconds), byref(error)), error)
    return Probed(best_s=seconds.best, median_s=seconds.median)
