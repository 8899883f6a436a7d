"""Whether a context can compute a token's row alike whatever else is decoded with it (`runtime.batch_invariant`).

Attention is the C shim's to check. Products must all be this project's CUDA kernels, since llama.cpp's split their sums
by the number of tokens: what can_compute in native/cuda/mmq_direct_graph.cu asks for is asked for here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ..errors import ConfigError
from ..model.header import TensorInfo

_COLUMNS_STEP = {8: 256, 12: 256, 14: 512}
"""Q8_0, Q4_K and Q6_K: what the length of a row must be a multiple of."""
_ROWS_STEP = 32
_MOST_ROWS = 26_112
"""of a layer's matrix: 4,096 tiles of 64 rows and 112 of a decode's 1,024 tokens"""
_MOST_HEAD_ROWS = 262_144
"""of the head, which is multiplied with at most 112 rows (qcls_context_params in native/src/qcls.h)"""
_HEADS = ("output.weight", "token_embd.weight")


def check_batch_invariant(tensors: Iterable[TensorInfo]) -> None:
    """Raise ConfigError for a model whose matrices the kernels do not take. tensors: of all parts of it."""
    if wrong := next(_wrong({tensor.name: tensor for tensor in tensors}), None):
        raise ConfigError(f"runtime.batch_invariant: {wrong}; without it, max_batch 1 keeps queries apart")


def _wrong(tensors: Mapping[str, TensorInfo]) -> Iterator[str]:
    for name, tensor in tensors.items():
        if name.startswith("blk.") and len(tensor.shape) > 1:
            yield from _wrong_matrix(tensor, _MOST_ROWS)
    yield from _wrong_matrix(next(tensors[name] for name in _HEADS if name in tensors), _MOST_HEAD_ROWS)


def _wrong_matrix(tensor: TensorInfo, most_rows: int) -> Iterator[str]:
    step = _COLUMNS_STEP.get(tensor.ggml_type)
    if step is None:
        from gguf import GGMLQuantizationType  # takes long to load

        yield (
            f"tensor {tensor.name!r} is {GGMLQuantizationType(tensor.ggml_type).name}, and the kernels for that take "
            "Q4_K, Q6_K and Q8_0: choose another file"
        )
    elif len(tensor.shape) > 2 or tensor.shape[0] % step or tensor.shape[1] % _ROWS_STEP or tensor.shape[1] > most_rows:
        yield (
            f"tensor {tensor.name!r} has the shape {tensor.shape}, and the kernels for that take two dimensions, the "
            f"first a multiple of {step}, the second a multiple of {_ROWS_STEP} and at most {most_rows}"
        )
