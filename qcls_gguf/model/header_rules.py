"""What a model's header may say: rules for that which llama.cpp does not check and then ends the process on.

llama.cpp checks that the tensors an architecture needs are there and have the shapes that the keys ask for. It does not
check that its kernels know their types, nor the ranges of numbers. Whatever no rule here names is left to a trial
(trial.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TypeGuard

from .header import GgufHeader, Scalar, TensorInfo

_F32 = 0
_NOT_WEIGHTS = {9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64"}
"""Types for which ggml has no product, look-up of rows, or both (ggml/src/ggml-cpu/ggml-cpu.c)."""
_F32_ENDINGS = (".bias", "_norm.weight", "_norm_2.weight", ".attn_sinks.weight", ".scale", ".input_scale")
_NO_TOKENIZER = ("", "none", "no_vocab")
_MOST = (1 << 31) - 1
_MAX_LAYERS = 512  # LLAMA_MAX_LAYERS in src/llama-hparams.h
_RANKING = 4  # LLAMA_POOLING_TYPE_RANK in include/llama.h
_TOKENS = ("bos", "eos", "eot")
"""Those that a prompt or a label may hold; of others llama.cpp ignores an id that no token has."""
_NO_TOKEN = (1 << 32) - 1
"""Such as -1 in a key that has no sign."""


_RANGES: tuple[tuple[type[float], int, float, tuple[str, ...]], ...] = (
    (float, 0, 1, tuple(f"attention.{name}_epsilon" for name in ("layer_norm", "layer_norm_rms", "group_norm"))),
    (float, 0, math.inf, tuple(f"rope.{name}" for name in ("freq_base", "freq_base_swa"))),
    (float, 0, math.inf, tuple(f"rope.scaling.{name}" for name in ("factor", "attn_factor"))),
    (int, 0, _MOST, ("context_length", "embedding_length", "rope.dimension_count", "rope.dimension_count_swa")),
    (int, 0, _MOST, tuple(f"attention.{part}_length{kind}" for part in ("key", "value") for kind in ("", "_swa"))),
    (int, 1, _MAX_LAYERS, ("block_count",)),
)
"""(int or any number, least, most, keys after the architecture's name)"""


def wrong_in_header(header: GgufHeader, tensors: Mapping[str, TensorInfo]) -> str | None:
    """What a header has that no model has, with the value; none where nothing is wrong.

    tensors: of all parts of the model.
    """
    return next(_wrong(header, tensors), None)


def other_purpose(header: GgufHeader) -> str | None:
    """What such a model was made for instead of going on with a text; none where it was made for that."""
    key = f"{header.arch}.pooling_type"
    if not (pooling := header.scalars.get(key)):
        return None
    purpose = "ranking texts" if pooling == _RANKING else "embeddings"
    return f"the model was made for {purpose} ({key} is {pooling}), and may label no better than chance"


def _wrong(header: GgufHeader, tensors: Mapping[str, TensorInfo]) -> Iterator[str]:
    for tensor in tensors.values():
        if tensor.ggml_type in _NOT_WEIGHTS:
            yield f"tensor {tensor.name!r} has the type {_NOT_WEIGHTS[tensor.ggml_type]}, which weights cannot have"
        if tensor.ggml_type != _F32 and (len(tensor.shape) < 2 or tensor.name.endswith(_F32_ENDINGS)):
            yield f"tensor {tensor.name!r} has the ggml type {tensor.ggml_type}; norms, biases and scales are F32 (0)"
        if 0 in tensor.shape:
            yield f"tensor {tensor.name!r} has the shape {tensor.shape}, which holds nothing"
    yield from _wrong_tokenizer(header)
    yield from _wrong_numbers(header.arch, header.scalars)


def _wrong_tokenizer(header: GgufHeader) -> Iterator[str]:
    model = header.scalars.get("tokenizer.ggml.model")
    if model in _NO_TOKENIZER:
        yield f"tokenizer.ggml.model is {model!r}: without a tokenizer no text can be labelled"
    tokens = header.arrays.get("tokenizer.ggml.tokens")
    if tokens is None:  # llama.cpp says so
        return
    if tokens.element_type != "str" or not tokens.length:
        yield "tokenizer.ggml.tokens is no list of texts: without a vocabulary no text can be labelled"
    for name in _TOKENS:
        value = header.scalars.get(f"tokenizer.ggml.{name}_token_id", -1)
        if type(value) is not int or not (value < tokens.length or value == _NO_TOKEN):
            yield f"tokenizer.ggml.{name}_token_id is {value!r}, and the vocabulary has {tokens.length} tokens"


def _wrong_numbers(arch: str, scalars: Mapping[str, Scalar]) -> Iterator[str]:
    for kind, least, most, names in _RANGES:
        for name in names:
            value = scalars.get(f"{arch}.{name}")
            if value is None or (_is_number(value, kind) and least <= value <= most):
                continue
            yield f"{arch}.{name} is {value!r}, not a {'whole ' * (kind is int)}number from {least} to {most}"
    n_rot = scalars.get(f"{arch}.rope.dimension_count", 0)
    n_head = scalars.get(f"{arch}.attention.key_length", 0)
    if type(n_rot) is int and type(n_head) is int and (n_rot % 2 or 0 < n_head < n_rot):
        yield f"{arch}.rope.dimension_count is {n_rot}, not an even number up to attention.key_length ({n_head})"
    n_embd, n_out = scalars.get(f"{arch}.embedding_length"), scalars.get(f"{arch}.embedding_length_out", 0)
    if n_out not in (0, n_embd):
        yield f"{arch}.embedding_length_out is {n_out!r}, and the head takes embedding_length ({n_embd!r}) values"


def _is_number(value: Scalar, kind: type[float]) -> TypeGuard[int | float]:
    return type(value) in (int, kind) and not isinstance(value, str) and math.isfinite(value)
