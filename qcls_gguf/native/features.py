"""Which instruction sets compute on the CPU: a figure says little without them."""

from __future__ import annotations

from functools import cache

from .library import library

_NO_INSTRUCTIONS = {"ACCELERATE", "CPU_HBM", "KLEIDIAI", "LLAMAFILE", "OPENMP", "REPACK"}
"""What ggml lists beside them: libraries, and ways of threading and of laying weights out."""


def cpu_features() -> list[str]:
    """What llama.cpp's CPU code was compiled for, by ggml's names, such as AVX2 or OPENMP."""
    text: str = library().qcls_cpu_features().decode()
    return text.split("\t") if text else []


def cpu_variant() -> str | None:
    """Which of a portable build's variants of CPU code computes, such as haswell; none in a build for one processor."""
    return library().qcls_cpu_variant().decode() or None


@cache
def instruction_sets() -> tuple[str, ...]:
    """Those that llama.cpp's CPU code was compiled for, by ggml's names, such as AVX2, AVX512_VNNI, AMX_INT8.

    AMX is among them only where the system lets the process use it.
    """
    return tuple(name for name in cpu_features() if name not in _NO_INSTRUCTIONS)
