"""The layers of small random models with recurrent layers."""

from collections.abc import Mapping

import numpy as np
from random_layers import Shape, attention, experts, gated_ffn
from random_tensors import RandomTensors


def mamba(t: RandomTensors, shape: Shape) -> None:
    """State-space layers, no attention."""
    n_inner, n_state, n_conv, dt_rank = 2 * shape.n_embd, 16, 4, shape.n_embd // 16
    t.key("ssm.conv_kernel", n_conv)
    t.key("ssm.inner_size", n_inner)
    t.key("ssm.state_size", n_state)
    t.key("ssm.time_step_rank", dt_rank)
    for i in range(shape.n_layer):
        prefix = f"blk.{i}."
        t.norm(f"{prefix}attn_norm", shape.n_embd)
        t.matrix(f"{prefix}ssm_in", shape.n_embd, 2 * n_inner)
        t.matrix(f"{prefix}ssm_conv1d", n_conv, n_inner, bias=True, type_name="F32")
        t.matrix(f"{prefix}ssm_x", n_inner, dt_rank + 2 * n_state)
        t.matrix(f"{prefix}ssm_dt", dt_rank, n_inner, bias=True, type_name="F32")
        decay = -np.exp(t.rng.normal(0, 0.5, (n_inner, n_state)))
        t.writer.add_tensor(f"{prefix}ssm_a", decay.astype(np.float32))
        t.vector(f"{prefix}ssm_d", n_inner, mean=1.0)
        t.matrix(f"{prefix}ssm_out", n_inner, shape.n_embd, gain=3.0)
    t.norm("output_norm", shape.n_embd)


def lfm2(t: RandomTensors, shape: Shape, *, keys: Mapping[str, int] | None = None) -> None:
    """Short convolutions in even layers, attention in odd ones. The final norm has the name `token_embd_norm`."""
    for key, value in (keys or {}).items():
        t.key(key, value)
    n_head_kv = [shape.n_head_kv if i % 2 else 0 for i in range(shape.n_layer)]
    t.key("attention.head_count", shape.n_head)
    t.key("attention.head_count_kv", n_head_kv)
    t.key("shortconv.l_cache", 3)
    for i in range(shape.n_layer):
        prefix = f"blk.{i}."
        t.norm(f"{prefix}attn_norm", shape.n_embd)
        if n_head_kv[i]:
            attention(t, shape, prefix, n_head_kv=n_head_kv[i], qk_norm=True)
        else:
            t.matrix(f"{prefix}shortconv.in_proj", shape.n_embd, 3 * shape.n_embd)
            t.matrix(f"{prefix}shortconv.conv", 3, shape.n_embd, type_name="F32")
            t.matrix(f"{prefix}shortconv.out_proj", shape.n_embd, shape.n_embd)
        t.norm(f"{prefix}ffn_norm", shape.n_embd)
        gated_ffn(t, shape, prefix)
    t.norm("token_embd_norm", shape.n_embd)


def qwen35(t: RandomTensors, shape: Shape, *, n_expert: int = 0) -> None:
    """Gated delta nets in even layers, gated attention in odd ones; experts, and one for all tokens, if asked for."""
    n_ff_expert = shape.n_ff // 4
    if n_expert:
        t.key("expert_count", n_expert)
        t.key("expert_used_count", 2)
        t.key("expert_feed_forward_length", n_ff_expert)
        t.key("expert_shared_feed_forward_length", n_ff_expert)
    n_state, n_k_heads, n_v_heads, n_conv = 32, 2, 4, 4
    n_keys, n_values = n_state * n_k_heads, n_state * n_v_heads
    t.key("attention.head_count", shape.n_head)
    t.key("attention.head_count_kv", shape.n_head_kv)
    t.key("attention.key_length", shape.head_dim)
    t.key("attention.value_length", shape.head_dim)
    t.key("rope.dimension_count", shape.head_dim)
    t.key("rope.dimension_sections", [11, 11, 10, 0])
    t.key("full_attention_interval", 2)
    t.key("ssm.conv_kernel", n_conv)
    t.key("ssm.inner_size", n_values)
    t.key("ssm.state_size", n_state)
    t.key("ssm.time_step_rank", n_v_heads)
    t.key("ssm.group_count", n_k_heads)
    for i in range(shape.n_layer):
        prefix = f"blk.{i}."
        t.norm(f"{prefix}attn_norm", shape.n_embd)
        t.norm(f"{prefix}post_attention_norm", shape.n_embd)
        if i % 2:
            # queries and their gates in one
            t.matrix(f"{prefix}attn_q", shape.n_embd, 2 * shape.n_head * shape.head_dim)
            t.matrix(f"{prefix}attn_k", shape.n_embd, shape.n_head_kv * shape.head_dim)
            t.matrix(f"{prefix}attn_v", shape.n_embd, shape.n_head_kv * shape.head_dim)
            t.matrix(f"{prefix}attn_output", shape.n_head * shape.head_dim, shape.n_embd, gain=3.0)
            t.norm(f"{prefix}attn_q_norm", shape.head_dim)
            t.norm(f"{prefix}attn_k_norm", shape.head_dim)
        else:
            t.matrix(f"{prefix}attn_qkv", shape.n_embd, 2 * n_keys + n_values)
            t.matrix(f"{prefix}attn_gate", shape.n_embd, n_values)
            t.matrix(f"{prefix}ssm_conv1d", n_conv, 2 * n_keys + n_values, type_name="F32")
            t.vector(f"{prefix}ssm_dt.bias", n_v_heads)
            decay = -np.exp(t.rng.normal(-2, 0.5, n_v_heads))
            t.writer.add_tensor(f"{prefix}ssm_a", decay.astype(np.float32))
            t.matrix(f"{prefix}ssm_beta", shape.n_embd, n_v_heads)
            t.matrix(f"{prefix}ssm_alpha", shape.n_embd, n_v_heads)
            t.norm(f"{prefix}ssm_norm", n_state)
            t.matrix(f"{prefix}ssm_out", n_values, shape.n_embd, gain=3.0)
        if n_expert:
            experts(t, shape, prefix, n_expert, n_ff_expert)
            t.vector(f"{prefix}ffn_gate_inp_shexp.weight", shape.n_embd)
            for name in ("gate", "up"):
                t.matrix(f"{prefix}ffn_{name}_shexp", shape.n_embd, n_ff_expert)
            t.matrix(f"{prefix}ffn_down_shexp", n_ff_expert, shape.n_embd, gain=2.0)
        else:
            gated_ffn(t, shape, prefix)
    t.norm("output_norm", shape.n_embd)


def granite_hybrid(t: RandomTensors, shape: Shape) -> None:
    """Mamba 2 in even layers, attention in odd ones, and Granite's scale of the logits."""
    n_inner, n_state, n_conv, n_group, n_ssm_head = 2 * shape.n_embd, 32, 4, 1, 8
    n_head_kv = [shape.n_head_kv if i % 2 else 0 for i in range(shape.n_layer)]
    t.key("attention.head_count", shape.n_head)
    t.key("attention.head_count_kv", n_head_kv)
    t.key("logit_scale", 1.5)
    t.key("ssm.conv_kernel", n_conv)
    t.key("ssm.inner_size", n_inner)
    t.key("ssm.state_size", n_state)
    t.key("ssm.time_step_rank", n_ssm_head)
    t.key("ssm.group_count", n_group)
    n_mixed = n_inner + 2 * n_group * n_state
    for i in range(shape.n_layer):
        prefix = f"blk.{i}."
        t.norm(f"{prefix}attn_norm", shape.n_embd)
        if n_head_kv[i]:
            attention(t, shape, prefix, n_head_kv=n_head_kv[i])
        else:
            t.matrix(f"{prefix}ssm_in", shape.n_embd, n_inner + n_mixed + n_ssm_head)
            t.matrix(f"{prefix}ssm_conv1d", n_conv, n_mixed, bias=True, type_name="F32")
            t.vector(f"{prefix}ssm_dt.bias", n_ssm_head)
            decay = -np.exp(t.rng.normal(0, 0.5, (n_ssm_head, 1)))
            t.writer.add_tensor(f"{prefix}ssm_a", decay.astype(np.float32))
            t.vector(f"{prefix}ssm_d", (n_ssm_head, 1), mean=1.0)
            t.vector(f"{prefix}ssm_norm.weight", (n_group, n_inner // n_group), mean=1.0)
            t.matrix(f"{prefix}ssm_out", n_inner, shape.n_embd, gain=3.0)
        t.norm(f"{prefix}ffn_norm", shape.n_embd)
        gated_ffn(t, shape, prefix)
    t.norm("output_norm", shape.n_embd)
