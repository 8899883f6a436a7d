"""The instruction sets of the CPU code, which every measurement depends on."""

from __future__ import annotations

from functools import cache

from .library import library

_NO_INSTRUCTIONS = {"ACCELERATE", "CPU_HBM", "KLEIDIAI", "LLAMAFILE", "OPENMP", "REPACK"}
"""Features that ggml lists but that are no instruction sets: libraries, threading, layouts of weights."""


def cpu_features() -> list[str]:
    """The features that llama.cpp's CPU code was compiled for, under ggml's names, such as AVX2 or OPENMP."""
    text: str = library().qcls_cpu_features().decode()
    return text.split("\t") if text else []


def cpu_variant() -> str | None:
    """The variant of CPU code that a portable build has chosen, such as haswell; None in a build for one processor."""
    return library().qcls_cpu_variant().decode() or None


@cache
def instruction_sets() -> tuple[str, ...]:
    """The instruction sets that llama.cpp's CPU code was compiled for, such as AVX2, AVX512_VNNI, AMX_INT8.

    AMX is listed only if the system lets the process use it.
    """
    return tuple(name for name in cpu_features() if name not in _NO_INSTRUCTIONS)
