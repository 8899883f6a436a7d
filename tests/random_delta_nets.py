"""The layers of small random models with delta nets: Qwen3-Next, Qwen3.5, Kimi Linear, Ling 3."""

from collections.abc import Sequence

from random_layers import HEAD_DIM, Shape, attention, expert_keys, experts, gated_ffn, head_keys, layers
from random_tensors import RandomTensors

_N_CONV = 4
_N_STATE, _N_K_HEADS, _N_V_HEADS = 32, 2, 4
"""Values of a head of a gated delta net, and its numbers of heads."""
_N_VALUES = _N_STATE * _N_V_HEADS
_N_MIXED = 2 * _N_STATE * _N_K_HEADS + _N_VALUES
"""Keys, queries and values of a token."""
_INTERVAL = 2
"""Every so many-th layer has attention instead."""


def qwen35(t: RandomTensors, shape: Shape, *, n_expert: int = 0, predicts_more: bool = False) -> None:
    """Gated delta nets, gated attention in every second layer; experts, and one for all tokens, if asked for.

    predicts_more: with a block after the layers that guesses the token after the next one, as published files have it.
    """
    t.key("rope.dimension_sections", [11, 11, 10, 0])
    if predicts_more:
        t.key("block_count", shape.n_layer + 1)
        t.key("nextn_predict_layers", 1)
        prefix = f"blk.{shape.n_layer}."
        for name in ("attn_norm", "post_attention_norm", "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm"):
            t.norm(f"{prefix}{name}", shape.n_embd)
        attention(t, shape, prefix, n_head_kv=shape.n_head_kv, qk_norm=True, has_gate=True)
        gated_ffn(t, shape, prefix)
        t.matrix(f"{prefix}nextn.eh_proj", 2 * shape.n_embd, shape.n_embd)
    _gated_layers(t, shape, n_expert, mixes=(("ssm_beta", _N_V_HEADS), ("ssm_alpha", _N_V_HEADS)))


def qwen3next(t: RandomTensors, shape: Shape) -> None:
    """The same with experts, a matrix for both of what mixes the states, and rotations of one kind."""
    _gated_layers(t, shape, n_expert=4, mixes=(("ssm_ba", 2 * _N_V_HEADS),))


def _gated_layers(t: RandomTensors, shape: Shape, n_expert: int, mixes: Sequence[tuple[str, int]]) -> None:
    """mixes: names and rows of the matrices that say how much a token changes the state, and how much of it stays."""
    n_ff_expert = shape.n_ff // 4
    if n_expert:
        expert_keys(t, n_expert, n_ff_expert, has_shared=True)
    head_keys(t, shape)
    t.keys("attention", key_length=shape.head_dim, value_length=shape.head_dim)
    t.key("rope.dimension_count", HEAD_DIM)
    t.key("full_attention_interval", _INTERVAL)
    t.keys("ssm", conv_kernel=_N_CONV, inner_size=_N_VALUES, state_size=_N_STATE)
    t.keys("ssm", time_step_rank=_N_V_HEADS, group_count=_N_K_HEADS)
    for i, prefix in enumerate(layers(t, shape)):
        t.norm(f"{prefix}post_attention_norm", shape.n_embd)
        if (i + 1) % _INTERVAL:
            _delta_net(t, shape, prefix, mixes)
        else:
            attention(t, shape, prefix, n_head_kv=shape.n_head_kv, qk_norm=True, has_gate=True)
        if n_expert:
            experts(t, shape, prefix, n_expert, n_ff_expert)
            t.vector(f"{prefix}ffn_gate_inp_shexp.weight", shape.n_embd)
            _shared_expert(t, shape, prefix, n_ff_expert)
        else:
            gated_ffn(t, shape, prefix)


def _delta_net(t: RandomTensors, shape: Shape, prefix: str, mixes: Sequence[tuple[str, int]]) -> None:
    t.matrix(f"{prefix}attn_qkv", shape.n_embd, _N_MIXED)
    t.matrix(f"{prefix}attn_gate", shape.n_embd, _N_VALUES)
    t.matrix(f"{prefix}ssm_conv1d", _N_CONV, _N_MIXED, type_name="F32")
    t.vector(f"{prefix}ssm_dt.bias", _N_V_HEADS)
    t.decay(f"{prefix}ssm_a", _N_V_HEADS, mean=-2.0)
    for name, n in mixes:
        t.matrix(f"{prefix}{name}", shape.n_embd, n)
    t.norm(f"{prefix}ssm_norm", _N_STATE)
    t.matrix(f"{prefix}ssm_out", _N_VALUES, shape.n_embd, gain=3.0)


def _shared_expert(t: RandomTensors, shape: Shape, prefix: str, n_ff: int) -> None:
    for name in ("gate", "up"):
        t.matrix(f"{prefix}ffn_{name}_shexp", shape.n_embd, n_ff)
    t.matrix(f"{prefix}ffn_down_shexp", n_ff, shape.n_embd, gain=2.0)


def kimi_linear(t: RandomTensors, shape: Shape, *, is_ling: bool = False) -> None:
    """Delta nets in even layers, attention over a short vector a token in odd ones; experts but in the first layer.

    is_ling: as Ling 3 has them, with full matrices for the gates, and rotations.
    """
    n_head, n_kda, n_rot, n_plain, n_value, kv_rank = shape.n_head, 32, 32, 32, 64, 64
    n_expert, n_ff_expert = 4, shape.n_ff // 4
    t.keys("attention", head_count=n_head, head_count_kv=[i % 2 for i in range(shape.n_layer)])
    t.keys("attention", key_length=kv_rank + n_rot, value_length=kv_rank)
    t.keys("attention", key_length_mla=n_plain + n_rot, value_length_mla=n_value, kv_lora_rank=kv_rank)
    t.key("rope.dimension_count", n_rot)
    t.key("ssm.conv_kernel", _N_CONV)
    t.key("kda.head_dim", n_kda)
    if is_ling:
        t.key("kda.gate_lower_bound", -5.0)
        t.key("expert_weights_norm", True)
    t.key("leading_dense_block_count", 1)
    expert_keys(t, n_expert, n_ff_expert)
    t.key("expert_shared_count", 1)
    t.key("expert_weights_scale", 1.5)
    t.key("expert_gating_func", 2)
    for i, prefix in enumerate(layers(t, shape)):
        if i % 2:
            t.matrix(f"{prefix}attn_q", shape.n_embd, n_head * (n_plain + n_rot))
            t.matrix(f"{prefix}attn_kv_a_mqa", shape.n_embd, kv_rank + n_rot)
            t.norm(f"{prefix}attn_kv_a_norm", kv_rank)
            t.matrix(f"{prefix}attn_k_b", n_plain, kv_rank, n_expert=n_head)
            t.matrix(f"{prefix}attn_v_b", kv_rank, n_value, n_expert=n_head)
            if is_ling:
                t.matrix(f"{prefix}attn_gate", shape.n_embd, n_head)
            t.matrix(f"{prefix}attn_output", n_head * n_value, shape.n_embd, gain=3.0)
        else:
            _kimi_delta_net(t, shape, prefix, n_kda, is_ling=is_ling)
        t.norm(f"{prefix}ffn_norm", shape.n_embd)
        if i == 0:
            gated_ffn(t, shape, prefix)
        else:
            experts(t, shape, prefix, n_expert, n_ff_expert)
            t.vector(f"{prefix}exp_probs_b.bias", n_expert)
            _shared_expert(t, shape, prefix, n_ff_expert)


def _kimi_delta_net(t: RandomTensors, shape: Shape, prefix: str, n_kda: int, *, is_ling: bool) -> None:
    n_inner = n_kda * shape.n_head
    for name in ("q", "k", "v"):
        t.matrix(f"{prefix}attn_{name}", shape.n_embd, n_inner)
        t.matrix(f"{prefix}ssm_conv1d_{name}", _N_CONV, 1, n_expert=n_inner, type_name="F32")
    for name in ("f", "g"):
        t.matrix(f"{prefix}ssm_{name}_a", shape.n_embd, n_inner if is_ling else n_kda)
        if not is_ling:
            t.matrix(f"{prefix}ssm_{name}_b", n_kda, n_inner)
    t.matrix(f"{prefix}ssm_beta", shape.n_embd, shape.n_head)
    t.decay(f"{prefix}ssm_a", (shape.n_head, 1), mean=-2.0)
    t.vector(f"{prefix}ssm_dt.bias", n_inner)
    t.norm(f"{prefix}ssm_norm", n_kda)
    t.matrix(f"{prefix}attn_output", n_inner, shape.n_embd, gain=3.0)
