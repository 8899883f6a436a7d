"""The devices that llama.cpp can compute on, and what this project's kernels compute on them."""

import ctypes
import warnings
from collections.abc import Iterator
from ctypes import byref
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


def cpu_variant() -> str | None:
    """The variant of CPU code that a portable build has chosen, such as haswell; None in a build for one processor."""
    cpu = _described(_CPU)
    return (cpu.cpu_variant.decode() or None) if cpu else None


@cache
def instruction_sets() -> tuple[str, ...]:
    """The instruction sets that llama.cpp's CPU code was compiled for, such as AVX2, AVX512_VNNI."""
    cpu = _described(_CPU)
    features = cpu.cpu_features.decode().split("\t") if cpu and cpu.cpu_features else []
    return tuple(name for name in features if name not in _NO_INSTRUCTIONS)


def _described(index: int) -> abi.Struct | None:
    """A device as C describes it; None if there is no such device."""
    device, error = abi.Device(), Error()
    status = library().qcls_device_describe(index, byref(device), byref(error))
    if status == Status.BAD_ARGUMENT:
        return None
    check(status, error)
    return device


def warn_of_unused_gpu(driver: str = "libcuda.so.1") -> None:
    """Warn of a GPU that NVIDIA's driver shows, and that this library, if it was built with CUDA, cannot use."""
    build = build_info()
    if not build.is_cuda or any(device.is_gpu for device in devices()):
        return
    try:
        if ctypes.CDLL(driver).cuInit(0) != 0:
            return
    except (OSError, AttributeError):
        return
    module, why = library_folder() / "libggml-cuda.so", "the driver may be too old for it"
    try:
        ctypes.CDLL(str(module))
    except OSError as e:
        why = str(e)
    told = f"NVIDIA's driver shows a GPU, and the CPU computes: {module.name} ({build.backend}) finds none: {why}"
    warnings.warn(told, stacklevel=3)


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
