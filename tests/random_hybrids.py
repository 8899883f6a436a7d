"""The layers of small random models with recurrent layers."""

import numpy as np
from random_layers import Shape, attention, gated_ffn
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


def lfm2(t: RandomTensors, shape: Shape) -> None:
    """Short convolutions in even layers, attention in odd ones. The final norm has the name `token_embd_norm`."""
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
