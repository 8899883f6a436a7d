"""This project's attention on plain arrays: of the built library, or compiled here for other instruction sets."""

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_float, c_int32, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from cpu_kernels import built_library, compiled_kernel

Float32Array = npt.NDArray[np.float32]
Int32Array = npt.NDArray[np.int32]
Cells = tuple[Int32Array, Int32Array]
"""A sequence's positions, ascending, and cells."""

VARIANTS = {"AVX-512": "-mavx512f -mfma -mf16c", "AVX2": "-mavx2 -mfma -mf16c", "plain": ""}
"""What the kernels are written for, and the compiler's flags for it."""


@dataclass(frozen=True, slots=True)
class Library:
    """`compute_attention` of attention.cpp, and the kernel that it runs."""

    compute: Any
    attend: c_void_p


def open_library(folder: Path, variant: str) -> Library:
    """A variant of the kernel; `built`: the package's own."""
    compiled = compiled_kernel("attention", folder, VARIANTS.get(variant, ""))
    kernels = built_library() if variant == "built" else compiled
    return Library(compiled.compute_attention, ctypes.cast(kernels.qcls_attend, c_void_p))


_POINTERS = ("token_seq", "token_pos", "list_start", "list_pos", "list_cell", "q", "k", "v", "out")


class _Arrays(ctypes.Structure):
    _fields_: ClassVar = [
        *((name, c_int32) for name in ["n_threads", "n_tokens", "n_seqs", "window", "n_head", "n_head_kv"]),
        *((name, c_int32) for name in ["head_size_k", "head_size_v", "is_f16"]),
        ("scale", c_float),
        *((name, c_void_p) for name in _POINTERS),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What attention is asked for; cells of k and v that no list names belong to others."""

    q: Float32Array
    """(n_tokens, n_head, head_size_k)"""
    k: npt.NDArray[Any]
    """(n_cells, n_head_kv, head_size_k), float16 or float32 as v is"""
    v: npt.NDArray[Any]
    """(n_cells, n_head_kv, head_size_v)"""
    token_seq: Int32Array
    token_pos: Int32Array
    lists: Sequence[Cells]
    window: int = 0

    @property
    def scale(self) -> float:
        return float(self.q.shape[2] ** -0.5)


def attention(library: Library, case: Case, *, n_threads: int = 1) -> Float32Array:
    """(n_tokens, n_head, head_size_v)."""
    start = np.cumsum([0, *(len(pos) for pos, _ in case.lists)], dtype=np.int32)
    none = np.empty(0, np.int32)
    pos, cell = (np.concatenate([none, *(part[i] for part in case.lists)]) for i in range(2))
    (n_tokens, n_head, size_k), (_, n_head_kv, size_v) = case.q.shape, case.v.shape
    out = np.full((n_tokens, n_head, size_v), np.nan, np.float32)
    arrays = case.token_seq, case.token_pos, start, pos, cell, case.q, case.k, case.v, out
    assert all(array.flags.c_contiguous for array in arrays)
    is_f16 = case.k.dtype == np.float16
    numbers = n_threads, n_tokens, len(case.lists), case.window, n_head, n_head_kv, size_k, size_v, is_f16, case.scale
    library.compute(byref(_Arrays(*numbers, *(array.ctypes.data for array in arrays))), library.attend)
    return out


def plain_attention(case: Case) -> npt.NDArray[np.float64]:
    """The same by the definition, in double precision: zeros for a token that sees no cell."""
    n_tokens, n_head, _ = case.q.shape
    out = np.zeros((n_tokens, n_head, case.v.shape[2]))
    for i in range(n_tokens):
        pos, cell = case.lists[case.token_seq[i]]
        distance = case.token_pos[i] - pos
        seen = cell[(distance >= 0) & ((case.window == 0) | (distance < case.window))]
        for h in range(n_head if len(seen) else 0):
            head_kv = h // (n_head // case.k.shape[1])
            score = case.k[seen, head_kv].astype(np.float64) @ case.q[i, h].astype(np.float64) * case.scale
            weight = np.exp(score - score.max())
            out[i, h] = weight / weight.sum() @ case.v[seen, head_kv].astype(np.float64)
    return out
