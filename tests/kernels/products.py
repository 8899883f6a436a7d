"""Products of quantised matrices on the first GPU, by ggml's own graphs, and the same in double precision."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_bool, c_char_p, c_float, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from typing import Any, Self
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from random_tensors import SCALES, random_blocks

from qcls_gguf.native.library import library, library_folder

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
_WEIGHTS = 1  # ggml_backend_buffer_usage
_F32 = 0
_EPS = 1e-6


class _InitParams(ctypes.Structure):
    _fields_ = (("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool))


def _ggml() -> Any:
    """ggml's functions, which libqcls has loaded already."""
    library()
    base = ctypes.CDLL(str(library_folder() / "libggml-base.so"))
    pointers = (
        "ggml_init ggml_new_tensor_1d ggml_new_tensor_2d ggml_mul_mat ggml_swiglu_split ggml_add ggml_mul "
        "ggml_rms_norm ggml_new_graph ggml_backend_alloc_ctx_tensors ggml_gallocr_new "
        "ggml_backend_get_default_buffer_type"
    )
    for name in pointers.split():
        getattr(base, name).restype = c_void_p
    for name in ("ggml_nbytes", "ggml_tensor_overhead", "ggml_graph_overhead"):
        getattr(base, name).restype = c_size_t
    base.ggml_init.argtypes = [_InitParams]
    return base


@dataclass(frozen=True, slots=True)
class Matrix:
    """A random matrix of weights: its bytes in a file and its values (n_rows, n_k)."""

    type_name: str
    data: npt.NDArray[np.uint8]
    values: Floats

    @classmethod
    def random(cls, rng: np.random.Generator, type_name: str, n_rows: int, n_k: int) -> Self:
        """Of any bytes where gguf cannot encode the type, with every other row 8 times as large."""
        kind = GGMLQuantizationType[type_name]
        if kind in SCALES:
            data = random_blocks(rng, kind, (n_rows, n_k), n_k**-0.5)
            data[::2] = random_blocks(rng, kind, (len(data[::2]), n_k), 8 * n_k**-0.5)
        else:
            spread = np.resize([8, 1], (n_rows, 1)) * n_k**-0.5
            data = quantize((rng.normal(size=(n_rows, n_k)) * spread).astype(np.float32), kind)
        return cls(type_name, data, dequantize(data, kind))


@dataclass(frozen=True, slots=True)
class Backend:
    """A context of the CUDA backend, or of another."""

    ggml: Any
    handle: c_void_p
    put_into_lane_order: Any

    def multiply(
        self, matrices: Sequence[Matrix], y: Floats, *, glu: bool = False, norm: bool = False, lanes: bool = False
    ) -> list[Floats]:
        """The products of the matrices with y (n_cols, n_k), of (n_cols, n_rows); with glu there are two, and one
        silu(gate)*up. With norm y is added to itself and normalised first, by root mean square with weights of one.
        """
        g = self.ggml
        params = _InitParams(32 * g.ggml_tensor_overhead() + g.ggml_graph_overhead(), None, True)
        weights, graph = c_void_p(g.ggml_init(params)), c_void_p(g.ggml_init(params))
        n_cols, n_k = y.shape
        tensors = []
        for matrix in matrices:
            kind = int(GGMLQuantizationType[matrix.type_name])
            tensors.append(c_void_p(g.ggml_new_tensor_2d(weights, kind, c_int64(n_k), c_int64(matrix.values.shape[0]))))
        one = c_void_p(g.ggml_new_tensor_1d(weights, _F32, c_int64(n_k)))
        memory = c_void_p(g.ggml_backend_alloc_ctx_tensors(weights, self.handle))
        g.ggml_backend_buffer_set_usage(memory, _WEIGHTS)
        for matrix, tensor in zip(matrices, tensors, strict=True):
            _set(g, tensor, matrix.data)
            if lanes:
                assert self.put_into_lane_order(tensor, b"1")
        _set(g, one, np.ones(n_k, np.float32))
        given = c_void_p(g.ggml_new_tensor_2d(graph, _F32, c_int64(n_k), c_int64(n_cols)))
        g.ggml_set_input(given)
        x = given
        if norm:
            x = c_void_p(g.ggml_rms_norm(graph, c_void_p(g.ggml_add(graph, x, x)), c_float(_EPS)))
            x = c_void_p(g.ggml_mul(graph, x, one))
        results = [c_void_p(g.ggml_mul_mat(graph, tensor, x)) for tensor in tensors]
        if glu:
            results = [c_void_p(g.ggml_swiglu_split(graph, *results))]
        nodes = c_void_p(g.ggml_new_graph(graph))
        for result in results:
            g.ggml_set_output(result)
            g.ggml_build_forward_expand(nodes, result)
        place = c_void_p(g.ggml_gallocr_new(c_void_p(g.ggml_backend_get_default_buffer_type(self.handle))))
        g.ggml_gallocr_alloc_graph(place, nodes)
        _set(g, given, y)
        assert g.ggml_backend_graph_compute(self.handle, nodes) == 0
        found = []
        for result in results:
            out = np.empty((n_cols, g.ggml_nbytes(result) // 4 // n_cols), np.float32)
            g.ggml_backend_tensor_get(result, out.ctypes.data_as(c_void_p), c_size_t(0), c_size_t(out.nbytes))
            found.append(out)
        g.ggml_gallocr_free(place)
        g.ggml_backend_buffer_free(memory)
        g.ggml_free(graph)
        g.ggml_free(weights)
        return found


def _set(ggml: Any, tensor: c_void_p, data: npt.NDArray[Any]) -> None:
    data = np.ascontiguousarray(data)
    ggml.ggml_backend_tensor_set(tensor, data.ctypes.data_as(c_void_p), c_size_t(0), c_size_t(data.nbytes))


@contextmanager
def backend(environment: dict[str, str], *, name: str = "CUDA", batch_invariant: bool = False) -> Iterator[Backend]:
    """A context of the named backend that read this environment."""
    ggml = _ggml()
    registry = ctypes.CDLL(str(library_folder() / "libggml.so"))
    for function in ("ggml_backend_reg_by_name", "ggml_backend_reg_dev_get", "ggml_backend_dev_init"):
        getattr(registry if "by_name" in function else ggml, function).restype = c_void_p
    ggml.ggml_backend_reg_get_proc_address.restype = c_void_p
    reg = c_void_p(registry.ggml_backend_reg_by_name(name.encode()))
    device = c_void_p(ggml.ggml_backend_reg_dev_get(reg, c_size_t(0)))

    def address(function: bytes) -> int | None:
        found: int | None = ggml.ggml_backend_reg_get_proc_address(reg, c_char_p(function))
        return found

    put, invariant = address(b"qcls_put_into_lane_order"), address(b"qcls_set_batch_invariant")
    set_invariant = ctypes.CFUNCTYPE(None, c_bool)(invariant) if invariant else None
    with patch.dict("os.environ", environment):
        if set_invariant:
            set_invariant(batch_invariant)
        handle = c_void_p(ggml.ggml_backend_dev_init(device, None))
        if set_invariant:
            set_invariant(False)
    try:
        yield Backend(ggml, handle, ctypes.CFUNCTYPE(c_bool, c_void_p, c_char_p)(put) if put else None)
    finally:
        ggml.ggml_backend_free(handle)


def quantized(y: Floats) -> Floats:
    """y (n_cols, n_k) as int8 values with a scale for 64 of a column, times that scale."""
    parts = y.reshape(len(y), -1, 64)
    largest = np.abs(parts).max(axis=2, keepdims=True)
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    scale = np.divide(np.float32(1), inverse, out=np.zeros_like(largest), where=largest > 0)
    scaled = parts * inverse
    rounded = np.trunc(scaled + np.copysign(np.float32(0.5), scaled))  # halves away from zero
    result: Floats = (rounded * scale).reshape(y.shape)
    return result


def normalized(y: Floats) -> Floats:
    """What `norm` of Backend.multiply makes of y."""
    doubled = 2 * y
    scale = 1 / np.sqrt((doubled.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + _EPS)
    result: Floats = (doubled * scale).astype(np.float32)
    return result


def exact(matrices: Sequence[Matrix], y: Floats, *, glu: bool = False) -> list[Doubles]:
    """What Backend.multiply should give of activations y that are quantised already."""
    results = [y.astype(np.float64) @ matrix.values.T.astype(np.float64) for matrix in matrices]
    if glu:
        gate, up = results
        results = [gate / (1 + np.exp(-gate)) * up]
    return results


def distance(found: Floats, wanted: Doubles) -> float:
    """|found - wanted| / |wanted|, Euclidean; NaN where a value is not finite."""
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))
