"""The first GPU as NVIDIA's driver shows it, before anything is computed on it: whether this build can use it, and
whether the driver will have to compile this library's kernels for it, which a start waits for in silence.

A library holds machine code for some architectures, which runs on GPUs of the same generation, and PTX, which the
driver compiles for newer ones: half a minute to two, at the first start, if its cache keeps what comes out.
"""

from __future__ import annotations

import ctypes
import re
import warnings
from collections.abc import Sequence
from ctypes import byref, c_int
from dataclasses import dataclass

from .device import devices
from .library import build_info, library_folder

_LIBRARY = "libcuda.so.1"
# of cuda.h
_MAJOR, _MINOR = 75, 76


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaDevice:
    """The first GPU that CUDA sees."""

    capability: int
    """its compute capability times ten, such as 75 for 7.5"""
    driver: int
    """the version of CUDA that the driver brings, such as 13000 for 13.0"""


def first_cuda_device(library: str = _LIBRARY) -> CudaDevice | None:
    """The first GPU; None if there is no driver or no GPU is visible."""
    try:
        driver = ctypes.CDLL(library)
        version, device, major, minor = c_int(), c_int(), c_int(), c_int()
        # each gives 0 where it succeeds
        failed = (
            driver.cuInit(0)
            or driver.cuDriverGetVersion(byref(version))
            or driver.cuDeviceGet(byref(device), 0)
            or driver.cuDeviceGetAttribute(byref(major), _MAJOR, device)
            or driver.cuDeviceGetAttribute(byref(minor), _MINOR, device)
        )
    except (OSError, AttributeError):
        return None
    return None if failed else CudaDevice(capability=major.value * 10 + minor.value, driver=version.value)


def running_code(architectures: Sequence[str], capability: int) -> tuple[int, bool] | None:
    """The code that a GPU of a compute capability, such as 86, runs: (architecture, such as 75; whether the driver
    compiles it first). None where it can run none.

    architectures: as in CUDAARCHS, such as 75, 86-real, 90a or 75-virtual. Machine code runs on GPUs of its generation
    that are not older, with `a` on that architecture alone; PTX is compiled for any GPU that is not older.
    """
    real, virtual = [0], [0]
    for each in architectures:
        if not (found := re.fullmatch(r"(\d+)([af]?)(-real|-virtual)?", each)):
            continue
        number, kind = int(found[1]), found[3]
        is_near = number == capability if found[2] == "a" else number // 10 == capability // 10 and number <= capability
        if kind != "-virtual" and is_near:
            real.append(number)
        if kind != "-real" and (is_near if found[2] else number <= capability):
            virtual.append(number)
    newest = max(real) or max(virtual)
    return (newest, not max(real)) if newest else None


def driver_step() -> str | None:
    """What the driver does first in a start that may use the first GPU, if that takes long; otherwise None.

    Warns of a GPU that this library, if it was built with CUDA, cannot use.
    """
    build = build_info()
    device = first_cuda_device() if build.is_cuda else None
    if device is None:
        return None
    if not any(each.is_gpu for each in devices()):
        module = library_folder() / "libggml-cuda.so"
        why = f"the driver, of CUDA {device.driver // 1000}, may be too old for it"
        try:
            ctypes.CDLL(str(module))
        except OSError as e:
            why = str(e)
        told = f"NVIDIA's driver shows a GPU, and the CPU computes: {module.name} ({build.backend}) finds none: {why}"
        warnings.warn(told, stacklevel=3)
        return None
    code = running_code(build.architectures, device.capability)
    both = f"CUDAARCHS='75;{device.capability}'" if device.capability > 75 else f"CUDAARCHS={device.capability}"
    if code is None:
        built = ", ".join(build.architectures)
        told = f"this library has no code for this GPU ({device.capability}), but for {built}: build with {both}"
        warnings.warn(told, stacklevel=3)
    if code is None or not code[1]:
        return None
    return (
        f"the driver compiles the kernels for this GPU (code for {code[0]} on {device.capability}), half a minute to "
        f"two minutes, at the first start, if its cache keeps them (CUDA_CACHE_PATH); never, if built with {both}"
    )
