"""What a start on a GPU waits for: whether NVIDIA's driver will have to compile this library's kernels, and whether it
can keep the result. Also why a GPU that the driver shows is not used.

A library holds machine code for some architectures, which runs on GPUs of the same generation, and PTX, which the
driver compiles for newer ones: half a minute to two, in silence, at the first start, if its cache keeps what comes out.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..native import build_info, library_folder
from ..native.cuda_driver import CudaDevice, first_cuda_device, why_not_loaded
from ..system.folders import cache_folder
from .placement import gpus

_USUAL_BYTES = 1 << 30
"""What the driver's cache may hold where nobody says: CUDA C++ Programming Guide, environment variables."""
_HOW_LONG = "half a minute to two"
_FOLDER = "gpu-code"


class RunningCode(NamedTuple):
    """The code of a library that a GPU runs."""

    architecture: int
    """such as 75"""
    is_compiled: bool
    """whether the driver compiles it for the GPU first"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverCache:
    """Where the driver keeps what it has compiled."""

    disabled: bool
    folder: Path | None
    """none for a user without a home"""
    max_bytes: int
    is_writable: bool
    is_empty: bool


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


def driver_work(
    architectures: Sequence[str], capability: int, cache: DriverCache, *, is_known: bool, n_bytes: int
) -> DriverWork:
    """What a start on a GPU makes the driver do.

    is_known: whether a start with this library, GPU and cache has ended well before; n_bytes: of the library.
    """
    here = _dotted(capability)
    built = ", ".join(architectures)
    code = running_code(architectures, capability)
    if code is None:
        remedy = f"build with CUDAARCHS='75;{capability}'" if capability > 75 else f"build with CUDAARCHS={capability}"
        return DriverWork(warnings=(f"this library has no code for this GPU ({here}), but for {built}: {remedy}",))
    if not code.is_compiled:
        return DriverWork()
    remedy = f"or build with CUDAARCHS='75;{capability}', so that it has nothing to compile"
    problem = _problem(cache, n_bytes)
    if problem:
        step = f"the driver compiles the kernels for this GPU, {_HOW_LONG} minutes, at every start"
        return DriverWork(step=step, warnings=(f"{problem}, {remedy}",))
    if is_known and not cache.is_empty:
        return DriverWork()
    what = f"the driver compiles the kernels for this GPU (code for {_dotted(code.architecture)} on {here})"
    return DriverWork(step=f"{what}: once, {_HOW_LONG} minutes; kept in {cache.folder}")


def why_unused(device: CudaDevice, backend: str, module: Path) -> str:
    """What to say where the driver shows a GPU and llama.cpp none, so that the CPU computes.

    backend: of the build; module: the library with its kernels.
    """
    told = "NVIDIA's driver shows a GPU, and the CPU computes"
    if reason := why_not_loaded(module):
        return f"{told}: {module.name} cannot be loaded: {reason}: install the libraries of {backend.partition(',')[0]}"
    version = f"{device.driver // 1000}.{device.driver % 1000 // 10}"
    return f"{told}: the library ({backend}) finds none: the driver, which brings CUDA {version}, may be too old for it"


def _problem(cache: DriverCache, n_bytes: int) -> str | None:
    """Why what the driver compiles is lost again, and the remedy; None where it is kept."""
    if cache.disabled:
        return "CUDA_CACHE_DISABLE is set, so that the driver compiles the kernels at every start: unset it"
    if cache.folder is None:
        return "the driver has no folder for what it compiles, and does so at every start: set CUDA_CACHE_PATH"
    if not cache.is_writable:
        return (
            f"{cache.folder}: not writable, so that the driver compiles the kernels at every start: set "
            "CUDA_CACHE_PATH to a folder that is"
        )
    if cache.max_bytes < n_bytes:
        return (
            f"CUDA_CACHE_MAXSIZE={cache.max_bytes}: the compiled kernels may not fit and be lost, so that the driver "
            f"compiles them at every start: set it to {n_bytes} bytes, the size of the library, or more"
        )
    return None


def driver_cache(environment: Mapping[str, str], home: Path | None) -> DriverCache:
    """The driver's cache, by the variables that CUDA reads."""
    path = environment.get("CUDA_CACHE_PATH")
    folder = Path(path) if path else home / ".nv" / "ComputeCache" if home else None
    size = environment.get("CUDA_CACHE_MAXSIZE", "")
    has_content = folder is not None and folder.is_dir() and bool(os.listdir(folder))
    return DriverCache(
        disabled=environment.get("CUDA_CACHE_DISABLE", "0") not in ("", "0"),
        folder=folder,
        max_bytes=int(size) if size.isdecimal() else _USUAL_BYTES,
        is_writable=folder is not None and _is_writable(folder),
        is_empty=not has_content,
    )


def _is_writable(folder: Path) -> bool:
    """Whether a folder can be written, or made where it is not there yet."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def _dotted(capability: int) -> str:
    return f"{capability // 10}.{capability % 10}"


class GpuCode:
    """The driver's work at one start on the first GPU."""

    def __init__(self) -> None:
        """Asks the driver, where this build has CUDA and it sees a GPU."""
        self.work = DriverWork()
        self._known: Path | None = None
        device = first_cuda_device() if build_info().is_cuda else None
        if device is None:
            return
        with suppress(RuntimeError, OSError):  # no home; a folder that nobody may read
            library = library_folder() / "libggml-cuda.so"
            if not gpus():
                self.work = DriverWork(warnings=(why_unused(device, build_info().backend, library),))
                return
            cache = driver_cache(os.environ, _home())
            self._known = _known(device, cache)
            self.work = driver_work(
                build_info().architectures,
                device.capability,
                cache,
                is_known=self._known is not None and self._known.exists(),
                n_bytes=library.stat().st_size,
            )

    def ended_well(self) -> None:
        """The start is over: the driver has compiled what it had to, and the next one need not be told."""
        if self._known is not None and self.work.step and not self.work.warnings:
            with suppress(OSError):
                self._known.parent.mkdir(parents=True, exist_ok=True)
                self._known.touch()


def _home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:
        return None


def _known(device: CudaDevice, cache: DriverCache) -> Path | None:
    """The file that tells that the driver has compiled this library's code for such a GPU into this cache."""
    folder, build = cache_folder(), build_info()
    if folder is None:
        return None
    parts = [build.source_digest, build.backend, device.capability, device.driver, str(cache.folder)]
    return folder / _FOLDER / hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
