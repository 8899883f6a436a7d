"""Properties of the first GPU from NVIDIA's driver, read before anything is computed on it."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int
from dataclasses import dataclass
from pathlib import Path

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


def why_not_loaded(module: Path) -> str | None:
    """Why a shared library cannot be loaded: the system's message; None if it can."""
    try:
        ctypes.CDLL(str(module))
    except OSError as e:
        return str(e)
    return None


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
