"""This project's attention on plain arrays: of the built library, or compiled here for other instruction sets."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from ctypes import POINTER, byref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qcls_gguf.native import library_folder
from qcls_gguf.native.abi import Attention, Error

Float32Array = npt.NDArray[np.float32]
Int32Array = npt.NDArray[np.int32]
Cells = tuple[Int32Array, Int32Array]
"""A sequence's positions, ascending, and cells."""

ROOT = Path(__file__).parents[1]
NATIVE = ROOT / "qcls_gguf" / "native"
LLAMA = ROOT / "vendor" / "llama.cpp"
VARIANTS = {"AVX-512": "-mavx512f -mfma -mf16c", "AVX2": "-mavx2 -mfma -mf16c", "plain": ""}
"""What the kernels are written for, and the compiler's flags for it."""


def why_not(variant: str) -> str | None:
    """Why a variant cannot be tried here; None where it can."""
    if variant == "built":
        return None
    if not shutil.which("g++") or not LLAMA.is_dir():
        return "needs g++ and the unpacked llama.cpp"
    flags = {flag.removeprefix("-m") for flag in VARIANTS[variant].split()}
    if flags - set(Path("/proc/cpuinfo").read_text().replace("\n", " ").split()):
        return f"this CPU has no {variant}"
    return None


def compiled(folder: Path, variant: str) -> Path:
    """A library of the kernels for one variant; QCLS_TEST_CXXFLAGS adds flags, such as those of sanitizers."""
    path = folder / f"attention-{variant}.so"
    shim = [NATIVE / "src" / name for name in ("attention.cpp", "error.cpp")]
    sources = [NATIVE / "cpu" / "attention.cpp", *shim, Path(__file__).parent / "alone.cpp"]
    flags = f"-std=c++17 -O2 -shared -fPIC {VARIANTS[variant]} {os.environ.get('QCLS_TEST_CXXFLAGS', '')}"
    folders = [
        f"-I{folder}" for folder in (NATIVE / "cpu", NATIVE / "src", LLAMA / "include", LLAMA / "ggml" / "include")
    ]
    subprocess.run(["g++", *shlex.split(flags), *folders, *map(str, sources), "-o", str(path)], check=True)
    return path


def open_library(folder: Path, variant: str) -> Any:
    """The variant's library; `built` is the package's own."""
    path = library_folder() / "libqcls.so" if variant == "built" else compiled(folder, variant)
    library = ctypes.CDLL(str(path))
    library.qcls_compute_attention.argtypes = [POINTER(Attention), POINTER(Error)]
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
    arrays = case.q, case.k, case.v, case.token_seq, case.token_pos, pos, cell
    assert all(array.flags.c_contiguous for array in arrays)
    error = Error()
    call = Attention(
        n_threads=n_threads,
        n_tokens=n_tokens,
        n_seqs=len(case.lists),
        n_cells=n_cells,
        token_seq=case.token_seq.ctypes.data,
        token_pos=case.token_pos.ctypes.data,
        list_start=start.ctypes.data,
        list_pos=pos.ctypes.data,
        list_cell=cell.ctypes.data,
        window=case.window,
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_size_k=size_k,
        head_size_v=size_v,
        is_f16=case.k.dtype == np.float16,
        scale=case.scale,
        q=case.q.ctypes.data,
        k=case.k.ctypes.data,
        v=case.v.ctypes.data,
        out=out.ctypes.data,
    )
    if library.qcls_compute_attention(byref(call), byref(error)):
        raise ValueError(error.message.decode())
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
