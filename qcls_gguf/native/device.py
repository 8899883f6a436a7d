"""The devices that llama.cpp can compute on, and measurements of their peak rates."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import byref
from dataclasses import dataclass
from typing import Literal

from . import abi
from .abi import Error, Status, check, int32
from .library import build_info, library

_KINDS: tuple[Literal["CPU", "GPU", "iGPU", "other"], ...] = ("CPU", "GPU", "iGPU", "other")


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
    """Seconds of one operation on a device: of five samples the best and the median."""

    best_s: float
    median_s: float


def devices() -> Iterator[Device]:
    """The devices that llama.cpp sees, GPUs first."""
    device, error = abi.Device(), Error()
    index = 0
    while (status := library().qcls_device_describe(index, byref(device), byref(error))) == Status.OK:
        yield Device(
            kind=_KINDS[device.kind],
            name=device.name.decode(errors="replace"),
            free_bytes=device.free_bytes,
            total_bytes=device.total_bytes,
        )
        index += 1
    if status != Status.BAD_ARGUMENT:  # which only says that there are no more
        check(status, error)


def sees_cuda_gpu() -> bool:
    """Whether this build computes on CUDA, and CUDA sees a GPU."""
    return build_info().is_cuda and any(device.kind == "GPU" for device in devices())


def probe_copy(device: int, *, n_threads: int, n_bytes: int, budget_s: float) -> Probed:
    """Copy n_bytes on a device, by its index in `devices`; twice n_bytes of its memory are needed.

    Raises PlanError for a number out of range, DecodeError where the device cannot do it.
    """
    copy = abi.Copy(device=device, n_threads=n_threads, n_bytes=n_bytes, budget_s=budget_s)
    seconds, error = abi.Seconds(), Error()
    check(library().qcls_probe_copy(byref(copy), byref(seconds), byref(error)), error)
    return Probed(best_s=seconds.best, median_s=seconds.median)


def probe_matmul(
    device: int, *, n_threads: int, ggml_type: int, n_inner: int, n_rows: int, n_columns: int, budget_s: float
) -> Probed:
    """Multiply weights of a ggml type, (n_inner, n_rows), with n_columns F32 columns; raises as `probe_copy`."""
    product = abi.Product(
        device=device,
        n_threads=n_threads,
        weight_type=int32(ggml_type, "ggml_type"),
        n_inner=n_inner,
        n_rows=n_rows,
        n_columns=n_columns,
        budget_s=budget_s,
    )
    seconds, error = abi.Seconds(), Error()
    check(library().qcls_probe_product(byref(product), byref(seconds), byref(error)), error)
    return Probed(best_s=seconds.best, median_s=seconds.median)
