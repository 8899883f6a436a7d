"""Checks whether a query's results can be independent of what else is in its decode (`runtime.batch_invariant`).

This project's CUDA kernels must compute all products, because llama.cpp's split their sums by the number of tokens. So
the conditions here are those of can_compute in native/cuda/mmq_direct_graph.cu. The output matrix is multiplied for
exact scores only. The C shim checks the conditions for attention.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import ConfigError
from ..model.header import TensorInfo

_COLUMNS_STEP = {8: 256, 12: 256, 14: 512}
"""For Q8_0, Q4_K and Q6_K: the length of a row must be a multiple of this."""
_ROWS_STEP = 32
_MOST_ROWS = 26_112
"""of a layer's matrix: 4,096 tiles of 64 rows and 112 of a decode's 1,024 tokens"""
_MOST_OUTPUT_ROWS = 262_144
"""of the output matrix, which is multiplied with at most 112 rows (qcls_context_params in native/src/qcls.h)"""
_OUTPUTS = ("output.weight", "token_embd.weight")


def check_layers(tensors: Mapping[str, TensorInfo]) -> None:
    """Raise ConfigError if the kernels cannot compute a matrix of the layers. tensors: of all the file's parts."""
    for name, tensor in tensors.items():
        if name.startswith("blk.") and len(tensor.shape) > 1 and (wrong := _wrong_matrix(tensor, _MOST_ROWS)):
            raise ConfigError(f"runtime.batch_invariant: {wrong}; without it, max_batch 1 keeps queries apart")


def wrong_output(tensors: Mapping[str, TensorInfo]) -> str | None:
    """Why exact scores, which need all rows of the output matrix, are impossible; None if the kernels can compute it.

    Other scores need only the rows of label tokens, which are multiplied on the CPU, whatever its type.
    """
    wrong = _wrong_matrix(next(tensors[name] for name in _OUTPUTS if name in tensors), _MOST_OUTPUT_ROWS)
    return wrong and (
        f"runtime.batch_invariant: {wrong}, for exact scores: choose scoring: tree, or leave batch_invariant out; "
        "max_batch 1 keeps queries apart"
    )


def _wrong_matrix(tensor: TensorInfo, most_rows: int) -> str | None:
    step = _COLUMNS_STEP.get(tensor.ggml_type)
    if step is None:
        from gguf import GGMLQuantizationType  # takes long to load

        return (
            f"tensor {tensor.name!r} is {GGMLQuantizationType(tensor.ggml_type).name}, and the kernels for that take "
            "Q4_K, Q6_K and Q8_0: choose another file"
        )
    if len(tensor.shape) > 2 or tensor.shape[0] % step or tensor.shape[1] % _ROWS_STEP or tensor.shape[1] > most_rows:
        return (
            f"tensor {tensor.name!r} has the shape {tensor.shape}, and the kernels for that take two dimensions, the "
            f"first a multiple of {step}, the second a multiple of {_ROWS_STEP} and at most {most_rows}"
        )
    return None
