"""This project's attention on plain arrays: of the built library, or compiled here for other instruction sets."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from ctypes import c_char_p, c_float, c_int32, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qcls_gguf.native import library_folder

Float32Array = npt.NDArray[np.float32]
Int32Array = npt.NDArray[np.int32]
Cells = tuple[Int32Array, Int32Array]
"""A sequence's positions, ascending, and cells."""

ROOT = Path(__file__).parents[1]
NATIVE = ROOT / "qcls_gguf" / "native"
GGML = ROOT / "vendor" / "llama.cpp" / "ggml" / "include"
VARIANTS = {"AVX-512": "-mavx512f -mfma -mf16c", "AVX2": "-mavx2 -mfma -mf16c", "plain": ""}
"""What the kernels are written for, and the compiler's flags for it."""


def why_not(variant: str) -> str | None:
    """Why a variant cannot be tried here; None where it can."""
    if variant == "built":
        return None
    if not shutil.which("g++") or not GGML.is_dir():
        return "needs g++ and the unpacked llama.cpp"
    flags = {flag.removeprefix("-m") for flag in VARIANTS[variant].split()}
    if flags - set(Path("/proc/cpuinfo").read_text().replace("\n", " ").split()):
        return f"this CPU has no {variant}"
    return None


def compiled(folder: Path, variant: str) -> Path:
    """A library of the kernels for one variant; QCLS_TEST_CXXFLAGS adds flags, such as those of sanitizers."""
    path = folder / f"attention-{variant}.so"
    sources = [NATIVE / "cpu" / "attention.cpp", NATIVE / "src" / "attention.cpp", Path(__file__).parent / "alone.cpp"]
    flags = f"-std=c++17 -O2 -shared -fPIC {VARIANTS[variant]} {os.environ.get('QCLS_TEST_CXXFLAGS', '')}"
    folders = [f"-I{folder}" for folder in (NATIVE / "cpu", NATIVE / "src", GGML)]
    subprocess.run(["g++", *shlex.split(flags), *folders, *map(str, sources), "-o", str(path)], check=True)
    return path


def open_library(folder: Path, variant: str) -> Any:
    """The variant's library; `built` is the package's own."""
    path = library_folder() / "libqcls.so" if variant == "built" else compiled(folder, variant)
    library = ctypes.CDLL(str(path))
    arrays = [c_void_p] * 3
    lists: list[Any] = [c_int32, c_void_p, c_void_p, c_int32, *arrays]
    shape: list[Any] = [*[c_int32] * 6, c_float, c_int32]
    error: list[Any] = [c_char_p, c_int32]
    library.qcls_attention.argtypes = [*lists, *shape, *arrays, c_int32, c_void_p, *error]
    return library


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


def attention(library: Any, case: Case, *, n_threads: int = 1) -> Float32Array:
    """(n_tokens, n_head, head_size_v); raises ValueError with the library's message."""
    start = np.cumsum([0, *(len(pos) for pos, _ in case.lists)], dtype=np.int32)
    none = np.empty(0, np.int32)
    pos, cell = (np.concatenate([none, *(part[i] for part in case.lists)]) for i in range(2))
    (n_tokens, n_head, size_k), (n_cells, n_head_kv, size_v) = case.q.shape, case.v.shape
    out = np.full((n_tokens, n_head, size_v), np.nan, np.float32)
    error = ctypes.create_string_buffer(256)
    arrays = case.q, case.k, case.v, case.token_seq, case.token_pos, pos, cell
    assert all(array.flags.c_contiguous for array in arrays)
    status = library.qcls_attention(
        n_tokens,
        case.token_seq.ctypes.data,
        case.token_pos.ctypes.data,
        len(case.lists),
        start.ctypes.data,
        pos.ctypes.data,
        cell.ctypes.data,
        n_cells,
        case.window,
        n_head,
        n_head_kv,
        size_k,
        size_v,
        case.scale,
        case.k.dtype == np.float16,
        case.q.ctypes.data,
        case.k.ctypes.data,
        case.v.ctypes.data,
        n_threads,
        out.ctypes.data,
        error,
        len(error),
    )
    if status:
        raise ValueError(error.value.decode())
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
