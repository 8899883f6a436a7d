"""The layers of small random models: which tensors and keys each family of architectures reads."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from random_tensors import RandomTensors

HEAD_DIM = 64
CONTEXT_LENGTH = 512


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of one model."""

    n_layer: int
    n_embd: int
    n_ff: int
    n_vocab: int
    head_dim: int
    n_head: int
    """query heads"""
    n_head_kv: int
    """key and value heads, where they may be fewer than query heads"""


@dataclass(frozen=True, slots=True)
class ArchSpec:
    """One kind of model.

    `arch` is llama.cpp's name of the architecture, where it is not the model's. `tail` is what turns the final norm's
    result into logits: the product with the head alone, or more, or something that no scorer here knows, or there are
    no logits. `memory` is what the model keeps of earlier tokens: all keys and values, those of a window in some
    layers, a recurrent state, keys and values in some layers and a state in others, those of an encoder too, or nothing
    (each token attends to later ones as well). `head` says whether the head is the token embedding. `n_layer` is how
    many layers a model has unless told otherwise.
    """

    build: Callable[[RandomTensors, Shape], None]
    arch: str | None = None
    tail: Literal["head", "bias", "scale", "softcap", "other", "none"] = "head"
    memory: Literal["full", "window", "recurrent", "hybrid", "encoder", "none"] = "full"
    head: Literal["either", "tied", "untied", "none"] = "either"
    n_layer: int = 2

    @property
    def is_plain(self) -> bool:
        """Whether logits are exactly head times final norm, and every layer attends to all earlier tokens."""
        return self.tail == "head" and self.memory == "full"


def layers(t: RandomTensors, shape: Shape, *, bias: bool = False, final: str = "output_norm") -> Iterator[str]:
    """The names' beginning of each layer, with a norm before its attention, and one of the name `final` after all."""
    for i in range(shape.n_layer):
        t.norm(f"blk.{i}.attn_norm", shape.n_embd, bias=bias)
        yield f"blk.{i}."
    t.norm(final, shape.n_embd, bias=bias)


def shape_keys(t: RandomTensors, shape: Shape) -> None:
    t.key("context_length", CONTEXT_LENGTH)
    t.key("block_count", shape.n_layer)
    t.key("embedding_length", shape.n_embd)
    t.key("feed_forward_length", shape.n_ff)


def head_keys(t: RandomTensors, shape: Shape) -> None:
    t.keys("attention", head_count=shape.n_head, head_count_kv=shape.n_head_kv)


def expert_keys(t: RandomTensors, n_expert: int, n_ff: int, *, has_shared: bool = False) -> None:
    """has_shared: with an expert for all tokens."""
    t.key("expert_count", n_expert)
    t.key("expert_used_count", 2)
    t.key("expert_feed_forward_length", n_ff)
    if has_shared:
        t.key("expert_shared_feed_forward_length", n_ff)


def attention(
    t: RandomTensors,
    shape: Shape,
    prefix: str,
    *,
    n_head_kv: int,
    qkv_bias: bool = False,
    out_bias: bool = False,
    qk_norm: bool = False,
    has_gate: bool = False,
    out_name: str = "attn_output",
) -> None:
    """has_gate: the matrix of the queries gives their gates, too."""
    t.matrix(f"{prefix}attn_q", shape.n_embd, (1 + has_gate) * shape.n_head * shape.head_dim, bias=qkv_bias)
    t.matrix(f"{prefix}attn_k", shape.n_embd, n_head_kv * shape.head_dim, bias=qkv_bias)
    t.matrix(f"{prefix}attn_v", shape.n_embd, n_head_kv * shape.head_dim, bias=qkv_bias)
    # The mean over the context is small: the gain lets it weigh as much as the token itself.
    t.matrix(f"{prefix}{out_name}", shape.n_head * shape.head_dim, shape.n_embd, gain=3.0, bias=out_bias)
    if qk_norm:
        t.norm(f"{prefix}attn_q_norm", shape.head_dim)
        t.norm(f"{prefix}attn_k_norm", shape.head_dim)


def gated_ffn(t: RandomTensors, shape: Shape, prefix: str) -> None:
    t.matrix(f"{prefix}ffn_gate", shape.n_embd, shape.n_ff)
    t.matrix(f"{prefix}ffn_up", shape.n_embd, shape.n_ff)
    t.matrix(f"{prefix}ffn_down", shape.n_ff, shape.n_embd, gain=2.0)


def plain_ffn(t: RandomTensors, shape: Shape, prefix: str) -> None:
    t.matrix(f"{prefix}ffn_up", shape.n_embd, shape.n_ff, bias=True)
    t.matrix(f"{prefix}ffn_down", shape.n_ff, shape.n_embd, gain=2.0, bias=True)


def experts(t: RandomTensors, shape: Shape, prefix: str, n_expert: int, n_ff: int, *, has_gate: bool = True) -> None:
    t.matrix(f"{prefix}ffn_gate_inp", shape.n_embd, n_expert, type_name="F32")
    if has_gate:
        t.matrix(f"{prefix}ffn_gate_exps", shape.n_embd, n_ff, n_expert=n_expert)
    t.matrix(f"{prefix}ffn_up_exps", shape.n_embd, n_ff, n_expert=n_expert)
    t.matrix(f"{prefix}ffn_down_exps", n_ff, shape.n_embd, gain=2.0, n_expert=n_expert)


def decoder(
    t: RandomTensors,
    shape: Shape,
    *,
    keys: Mapping[str, float | bool] | None = None,
    qkv_bias: bool = False,
    qk_norm: bool = False,
    ffn_norm: bool = True,
    post_norm: bool = False,
    n_expert: int = 0,
) -> None:
    """RMS-normed layers of attention and a gated network, in the details that architectures differ in."""
    head_keys(t, shape)
    if shape.n_head * shape.head_dim != shape.n_embd:
        t.keys("attention", key_length=shape.head_dim, value_length=shape.head_dim)
    for key, value in (keys or {}).items():
        t.key(key, value)
    n_ff_expert = shape.n_ff // 4
    if n_expert:
        expert_keys(t, n_expert, n_ff_expert)
    for prefix in layers(t, shape):
        attention(t, shape, prefix, n_head_kv=shape.n_head_kv, qkv_bias=qkv_bias, qk_norm=qk_norm)
        if ffn_norm:
            t.norm(f"{prefix}ffn_norm", shape.n_embd)
        if post_norm:
            t.norm(f"{prefix}post_attention_norm", shape.n_embd)
            t.norm(f"{prefix}post_ffw_norm", shape.n_embd)
        if n_expert:
            experts(t, shape, prefix, n_expert, n_ff_expert)
        else:
            gated_ffn(t, shape, prefix)


def grok(t: RandomTensors, shape: Shape) -> None:
    """Experts, norms after attention and network, a scale and a cap of the logits."""
    decoder(t, shape, keys={"logit_scale": 0.5, "final_logit_softcapping": 3.0, "embedding_scale": 1.0}, n_expert=4)
    for i in range(shape.n_layer):
        t.norm(f"blk.{i}.attn_output_norm", shape.n_embd)
        t.norm(f"blk.{i}.post_ffw_norm", shape.n_embd)


def chameleon(t: RandomTensors, shape: Shape) -> None:
    """Llama's layers, with a norm of its own for each head's queries and keys."""
    decoder(t, shape)
    for i in range(shape.n_layer):
        for name, n_head in (("q", shape.n_head), ("k", shape.n_head_kv)):
            t.vector(f"blk.{i}.attn_{name}_norm.weight", (n_head, shape.head_dim), mean=1.0)


def biased_decoder(t: RandomTensors, shape: Shape, *, ffn_norm: bool) -> None:
    """Layers with biases in every norm and product, and a network without a gate."""
    head_keys(t, shape)
    for prefix in layers(t, shape, bias=True):
        attention(t, shape, prefix, n_head_kv=shape.n_head_kv, qkv_bias=True, out_bias=True)
        if ffn_norm:
            t.norm(f"{prefix}ffn_norm", shape.n_embd, bias=True)
        plain_ffn(t, shape, prefix)


def sinks_decoder(t: RandomTensors, shape: Shape) -> None:
    """gpt-oss's layers: a sink for each head, a window in every second layer, experts with biases."""
    n_expert, n_ff = 4, shape.n_ff // 4
    head_keys(t, shape)
    t.key("attention.sliding_window", 8)
    expert_keys(t, n_expert, n_ff)
    for prefix in layers(t, shape):
        attention(t, shape, prefix, n_head_kv=shape.n_head_kv, qkv_bias=True, out_bias=True)
        t.vector(f"{prefix}attn_sinks.weight", shape.n_head, mean=1.0)
        t.norm(f"{prefix}post_attention_norm", shape.n_embd)
        experts(t, shape, prefix, n_expert, n_ff)
        t.vector(f"{prefix}ffn_gate_inp.bias", n_expert)
        for name, n in (("gate", n_ff), ("up", n_ff), ("down", shape.n_embd)):
            t.vector(f"{prefix}ffn_{name}_exps.bias", (n_expert, n))


def longrope_decoder(t: RandomTensors, shape: Shape) -> None:
    """Phi-3's layers, with RoPE factors for caches of up to CONTEXT_LENGTH cells and others for longer ones."""
    head_keys(t, shape)
    t.key("rope.scaling.original_context_length", CONTEXT_LENGTH)
    for name, (low, high) in {"short": (1.0, 1.5), "long": (2.0, 20.0)}.items():
        factors = np.linspace(low, high, HEAD_DIM // 2, dtype=np.float32)
        t.writer.add_tensor(f"rope_factors_{name}.weight", factors)
    for prefix in layers(t, shape):
        attention(t, shape, prefix, n_head_kv=shape.n_head_kv)
        t.norm(f"{prefix}ffn_norm", shape.n_embd)
        t.matrix(f"{prefix}ffn_up", shape.n_embd, 2 * shape.n_ff)  # the gate and its factor in one
        t.matrix(f"{prefix}ffn_down", shape.n_ff, shape.n_embd, gain=2.0)


def latent_decoder(t: RandomTensors, shape: Shape) -> None:
    """MiniCPM 3's layers: keys and values from a short vector a token, to which a rotated part is added."""
    n_rot, n_plain, q_rank, kv_rank = 32, 32, 96, 64
    n_head = shape.n_head
    t.keys("attention", head_count=n_head, head_count_kv=n_head, q_lora_rank=q_rank, kv_lora_rank=kv_rank)
    t.keys("attention", key_length=n_plain + n_rot, value_length=HEAD_DIM)
    t.key("rope.dimension_count", n_rot)
    for prefix in layers(t, shape):
        t.matrix(f"{prefix}attn_q_a", shape.n_embd, q_rank)
        t.norm(f"{prefix}attn_q_a_norm", q_rank)
        t.matrix(f"{prefix}attn_q_b", q_rank, n_head * (n_plain + n_rot))
        t.matrix(f"{prefix}attn_kv_a_mqa", shape.n_embd, kv_rank + n_rot)
        t.norm(f"{prefix}attn_kv_a_norm", kv_rank)
        t.matrix(f"{prefix}attn_kv_b", kv_rank, n_head * (n_plain + HEAD_DIM))
        t.matrix(f"{prefix}attn_output", n_head * HEAD_DIM, shape.n_embd, gain=3.0)
        t.norm(f"{prefix}ffn_norm", shape.n_embd)
        gated_ffn(t, shape, prefix)


def t5(t: RandomTensors, shape: Shape) -> None:
    """As many encoder layers as decoder layers; every head has its own keys and values."""
    n_buckets = 32
    t.keys("attention", head_count=shape.n_head, relative_buckets_count=n_buckets)
    for part in ("enc", "dec"):
        for i in range(shape.n_layer):
            prefix = f"{part}.blk.{i}."
            t.norm(f"{prefix}attn_norm", shape.n_embd)
            attention(t, shape, prefix, n_head_kv=shape.n_head, out_name="attn_o")
            if i == 0:
                t.matrix(f"{prefix}attn_rel_b", shape.n_head, n_buckets, type_name="F32")
            if part == "dec":
                t.norm(f"{prefix}cross_attn_norm", shape.n_embd)
                attention(t, shape, f"{prefix}cross_", n_head_kv=shape.n_head, out_name="attn_o")
            t.norm(f"{prefix}ffn_norm", shape.n_embd)
            gated_ffn(t, shape, prefix)
        t.norm(f"{part}.output_norm", shape.n_embd)
