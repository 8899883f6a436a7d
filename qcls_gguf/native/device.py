"""The devices that llama.cpp can compute on: instruction sets, the first GPU as NVIDIA's driver shows it.

A library holds machine code for some architectures, which runs on GPUs of the same generation, and PTX, which the
driver compiles for newer ones: half a minute to two, at the first start, if its cache keeps what comes out.
"""

import ctypes
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import byref, c_int
from dataclasses import dataclass
from functools import cache
from typing import Literal

from . import abi
from .abi import Error, Status, check
from .library import build_info, library, library_folder

_KINDS: tuple[Literal["CPU", "GPU", "iGPU", "other"], ...] = ("CPU", "GPU", "iGPU", "other")
_CPU = -1  # index of the processor
_NO_INSTRUCTIONS = {"ACCELERATE", "CPU_HBM", "KLEIDIAI", "LLAMAFILE", "OPENMP", "REPACK"}
"""Features that ggml lists but that are no instruction sets: libraries, threading, layouts of weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device that llama.cpp can compute on; memory in bytes."""

    kind: Literal["CPU", "GPU", "iGPU", "other"]
    name: str
    free_bytes: int

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU, with memory of its own or the CPU's."""
        return self.kind in ("GPU", "iGPU")


def devices() -> Iterator[Device]:
    """The devices that llama.cpp sees, GPUs first."""
    index = 0
    while device := _described(index):
        yield device.to(Device, kind=_KINDS[device.kind])
        index += 1


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
    """The instruction sets that llama.cpp's CPU code was compiled for, such as AVX2, AVX512_VNNI."""
    return tuple(name for name in cpu_features() if name not in _NO_INSTRUCTIONS)


def _described(index: int) -> abi.Struct | None:
    """A device as C describes it; None if there is no such device."""
    device, error = abi.Device(), Error()
    status = library().qcls_device_describe(index, byref(device), byref(error))
    if status == Status.BAD_ARGUMENT:
        return None
    check(status, error)
    return device


# of cuda.h
_MAJOR, _MINOR = 75, 76


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaDevice:
    """The first GPU that CUDA sees."""

    capability: int
    """its compute capability times ten, such as 75 for 7.5"""
    driver: int
    """the version of CUDA that the driver brings, such as 13000 for 13.0"""


def first_cuda_device(library: str = "libcuda.so.1") -> CudaDevice | None:
    """The first GPU; None if there is no driver or no GPU is visible."""
    try:
        driver = ctypes.CDLL(library)
        version, device, major, minor = c_int(), c_int(), c_int(), c_int()
        # 0 where they succeed
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
    for name in architectures:
        if not (form := re.fullmatch(r"(\d+)([af]?)(-real|-virtual)?", name)):
            continue
        number, kind = int(form[1]), form[3]
        is_near = number == capability if form[2] == "a" else number // 10 == capability // 10 and number <= capability
        if kind != "-virtual" and is_near:
            real.append(number)
        if kind != "-real" and (is_near if form[2] else number <= capability):
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
    if not any(device.is_gpu for device in devices()):
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


# The steps of this project's kernels, and the environment variables that switch them: a step is on where its variable
# is 1 and off where it is 0, for contexts that are created then; lane order, the CPU's products and the walk of token
# trees for models that are loaded then. docs/kernels.md, docs/cpu.md and docs/models.md say what they do.
STEPS = {
    "direct": "QCLS_MMQ_DIRECT",
    "quantize once": "QCLS_QUANTIZE_ONCE",
    "one launch": "QCLS_FUSE_MATRICES",
    "glu": "QCLS_FUSE_GLU",
    "norm": "QCLS_FUSE_NORM",
    "rope": "QCLS_FUSE_ROPE",
    "short loops": "QCLS_SHORT_LOOPS",
    "visible cells": "QCLS_VISIBLE_CELLS",
}
"""Variables by the step's name, in the order in which comparisons add them."""
LANE_ORDER = "QCLS_LANE_ORDER"
CPU_PRODUCTS = "QCLS_CPU_PRODUCTS"
TREE_WALK = "QCLS_TREE_WALK"
STOCK = dict.fromkeys((*STEPS.values(), CPU_PRODUCTS, TREE_WALK), "0")
"""The environment in which a model is loaded, and a context made, that run llama.cpp's own kernels."""
_QUANTISED = {
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ3_S", "IQ4_NL", "IQ4_XS", "MXFP4"),
}
OWN_TYPES = {"GPU": _QUANTISED, "CPU": _QUANTISED | {"NVFP4", "F32", "F16", "BF16"}}
"""The types of weights that this project's kernels multiply by, by the kind of device; all others llama.cpp's do."""


def type_name(ggml_type: int) -> str:
    """The name of a type of weights, such as Q4_K."""
    name = library().ggml_type_name  # of a library that it is linked with
    name.restype = ctypes.c_char_p
    return str(name(ggml_type).decode()).upper()


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """These variables are in the environment inside, and what they were before afterwards."""
    before = {name: os.environ.get(name) for name in variables}
    try:
        os.environ.update(variables)
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
