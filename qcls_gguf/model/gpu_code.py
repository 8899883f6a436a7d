"""What a start on a GPU waits for in silence: whether NVIDIA's driver will have to compile this library's kernels. Also
why a GPU that the driver shows is not used.

A library holds machine code for some architectures, which runs on GPUs of the same generation, and PTX, which the
driver compiles for newer ones: half a minute to two, at the first start, if its cache keeps what comes out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..native import build_info, library_folder
from ..native.cuda_driver import CudaDevice, first_cuda_device, why_not_loaded
from ..system.folders import read_cache, write_cache
from .placement import gpus

_KNOWN = "gpu-code.json"
_MOST_KNOWN = 64
_VARIABLES = ("CUDA_CACHE_DISABLE", "CUDA_CACHE_MAXSIZE", "CUDA_CACHE_PATH")
"""They say what the driver keeps of the code that it compiles: CUDA C++ Programming Guide, environment variables."""


class RunningCode(NamedTuple):
    """The code of a library that a GPU runs."""

    architecture: int
    """such as 75"""
    is_compiled: bool
    """whether the driver compiles it for the GPU first"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverWork:
    """What to say before a start."""

    step: str | None = None
    """what the driver will do, where it takes long"""
    warnings: tuple[str, ...] = ()


def running_code(architectures: Sequence[str], capability: int) -> RunningCode | None:
    """The code that a GPU of a compute capability, such as 86, runs; None where it can run none.

    architectures: as in CUDAARCHS, such as 75, 86-real, 90a or 75-virtual. Machine code runs on GPUs of its generation
    that are not older, with `a` on that architecture alone; PTX is compiled for any GPU that is not older.
    """
    real, virtual = [], []
    for each in architectures:
        if not (found := re.fullmatch(r"(\d+)([af]?)(-real|-virtual)?", each)):
            continue
        number, kind = int(found[1]), found[3]
        is_near = number == capability if found[2] == "a" else number // 10 == capability // 10 and number <= capability
        if kind != "-virtual" and is_near:
            real.append(number)
        if kind != "-real" and (is_near if found[2] else number <= capability):
            virtual.append(number)
    if real:
        return RunningCode(max(real), is_compiled=False)
    return RunningCode(max(virtual), is_compiled=True) if virtual else None


def driver_work(architectures: Sequence[str], capability: int, *, is_known: bool) -> DriverWork:
    """What a start on a GPU makes the driver do.

    is_known: whether a start with this library, GPU and cache has ended well before.
    """
    code = running_code(architectures, capability)
    both = f"CUDAARCHS='75;{capability}'" if capability > 75 else f"CUDAARCHS={capability}"
    here = _dotted(capability)
    if code is None:
        built = ", ".join(architectures)
        return DriverWork(
            warnings=(f"this library has no code for this GPU ({here}), but for {built}: build with {both}",)
        )
    if not code.is_compiled or is_known:
        return DriverWork()
    return DriverWork(
        step=f"the driver compiles the kernels for this GPU (code for {_dotted(code.architecture)} on {here}), half a "
        f"minute to two minutes: once, if its cache keeps them ({', '.join(_VARIABLES)}); never, if built with {both}"
    )


def why_unused(device: CudaDevice, backend: str, module: Path) -> str:
    """What to say where the driver shows a GPU and llama.cpp none, so that the CPU computes.

    backend: of the build; module: the library with its kernels.
    """
    told = "NVIDIA's driver shows a GPU, and the CPU computes"
    if reason := why_not_loaded(module):
        return f"{told}: {module.name} cannot be loaded: {reason}: install the libraries of {backend.partition(',')[0]}"
    version = f"{device.driver // 1000}.{device.driver % 1000 // 10}"
    return f"{told}: the library ({backend}) finds none: the driver, which brings CUDA {version}, may be too old for it"


def _dotted(capability: int) -> str:
    return f"{capability // 10}.{capability % 10}"


class GpuCode:
    """The driver's work at one start on the first GPU."""

    def __init__(self) -> None:
        """Asks the driver, where this build has CUDA and it sees a GPU."""
        self.work = DriverWork()
        build = build_info()
        device = first_cuda_device() if build.is_cuda else None
        if device is None:
            return
        if not gpus():
            unused = why_unused(device, build.backend, library_folder() / "libggml-cuda.so")
            self.work = DriverWork(warnings=(unused,))
            return
        variables = [os.environ.get(name) for name in _VARIABLES]
        self._key = [build.source_digest, build.backend, device.capability, device.driver, *variables]
        self.work = driver_work(build.architectures, device.capability, is_known=self._key in read_cache(_KNOWN, []))

    def ended_well(self) -> None:
        """The start is over: the driver has compiled what it had to, and the next one need not be told."""
        if self.work.step:
            write_cache(_KNOWN, [*read_cache(_KNOWN, []), self._key][-_MOST_KNOWN:])
