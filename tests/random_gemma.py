"""The layers of small random Gemma 3n and Gemma 4 models: embeddings of their own for each layer, shared keys."""

from random_layers import Shape, attention, gated_ffn, head_keys, layers
from random_tensors import RandomTensors

_N_ALTUP, _N_EMBD_ALTUP, _LAUREL_RANK = 4, 256, 64
"""Numbers that llama.cpp has for every Gemma 3n model."""


def _normed_layer(t: RandomTensors, shape: Shape, prefix: str) -> None:
    """What both have of a layer of Gemma 3."""
    attention(t, shape, prefix, n_head_kv=shape.n_head_kv, qk_norm=True)
    t.norm(f"{prefix}post_attention_norm", shape.n_embd)
    t.norm(f"{prefix}ffn_norm", shape.n_embd)
    gated_ffn(t, shape, prefix)
    t.norm(f"{prefix}post_ffw_norm", shape.n_embd)


def _layer_embeddings(t: RandomTensors, shape: Shape, n: int) -> None:
    """n values for each layer and token, and the projections that bring them into the layers."""
    t.matrix("per_layer_token_embd", n * shape.n_layer, shape.n_vocab, gain=n**0.5)
    t.matrix("per_layer_model_proj", shape.n_embd, n * shape.n_layer)
    t.norm("per_layer_proj_norm", n)
    for i in range(shape.n_layer):
        t.matrix(f"blk.{i}.inp_gate", shape.n_embd, n)
        t.matrix(f"blk.{i}.proj", n, shape.n_embd)
        t.norm(f"blk.{i}.post_norm", shape.n_embd)


def _keys(t: RandomTensors, shape: Shape) -> None:
    head_keys(t, shape)
    t.key("attention.sliding_window", 8)
    t.key("final_logit_softcapping", 3.0)


def gemma4(t: RandomTensors, shape: Shape) -> None:
    """A window in even layers; the last two layers use the keys and values of the two before them."""
    _keys(t, shape)
    for name in ("key_length", "value_length", "key_length_swa", "value_length_swa"):
        t.key(f"attention.{name}", shape.head_dim)
    windows = [i % 2 == 0 for i in range(shape.n_layer)]
    t.keys("attention", sliding_window_pattern=windows, shared_kv_layers=2)
    t.key("embedding_length_per_layer_input", 32)
    _layer_embeddings(t, shape, 32)
    t.vector("rope_freqs.weight", shape.head_dim // 2, mean=1.5)
    for prefix in layers(t, shape):
        _normed_layer(t, shape, prefix)
        t.vector(f"{prefix}layer_output_scale.weight", 1, mean=1.0)


def gemma3n(t: RandomTensors, shape: Shape) -> None:
    """Four streams, of which each layer computes one and predicts the others."""
    _keys(t, shape)
    t.key("attention.sliding_window_pattern", 2)
    _layer_embeddings(t, shape, _N_EMBD_ALTUP)
    t.matrix("altup_proj", shape.n_embd, shape.n_embd, n_expert=_N_ALTUP - 1)
    t.matrix("altup_unembd_proj", shape.n_embd, shape.n_embd, n_expert=_N_ALTUP - 1)
    for prefix in layers(t, shape):
        _normed_layer(t, shape, prefix)
        t.matrix(f"{prefix}altup_correct_coef", _N_ALTUP, _N_ALTUP, type_name="F32")
        t.norm(f"{prefix}altup_correct_scale", shape.n_embd)
        t.matrix(f"{prefix}altup_predict_coef", _N_ALTUP, _N_ALTUP**2, type_name="F32")
        t.matrix(f"{prefix}altup_router", shape.n_embd, _N_ALTUP)
        t.norm(f"{prefix}altup_router_norm", shape.n_embd)
        t.matrix(f"{prefix}laurel_l", shape.n_embd, _LAUREL_RANK)
        t.matrix(f"{prefix}laurel_r", _LAUREL_RANK, shape.n_embd)
        t.norm(f"{prefix}laurel_post_norm", shape.n_embd)
