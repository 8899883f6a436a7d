"""Small random models with recurrent layers: their kinds, and the layers of Mamba 1 and 2 and short convolutions."""

from collections.abc import Callable, Mapping
from functools import partial

from random_delta_nets import kimi_linear, qwen3next, qwen35
from random_layers import ArchSpec, Shape, attention, expert_keys, experts, gated_ffn, head_keys, layers, plain_ffn
from random_tensors import RandomTensors

_N_STATE_2 = 128
"""Values of a state of Mamba 2, as published models have them; ggml's CUDA kernel knows few sizes."""


def mamba(t: RandomTensors, shape: Shape) -> None:
    """State-space layers, no attention."""
    _mamba_keys(t, shape)
    for prefix in layers(t, shape):
        _mamba_layer(t, shape, prefix)


def _mamba_keys(t: RandomTensors, shape: Shape) -> None:
    t.keys("ssm", conv_kernel=4, inner_size=2 * shape.n_embd, state_size=16, time_step_rank=shape.n_embd // 16)


def _mamba_layer(t: RandomTensors, shape: Shape, prefix: str) -> None:
    n_inner, n_state, n_conv, dt_rank = 2 * shape.n_embd, 16, 4, shape.n_embd // 16
    t.matrix(f"{prefix}ssm_in", shape.n_embd, 2 * n_inner)
    t.matrix(f"{prefix}ssm_conv1d", n_conv, n_inner, bias=True, type_name="F32")
    t.matrix(f"{prefix}ssm_x", n_inner, dt_rank + 2 * n_state)
    t.matrix(f"{prefix}ssm_dt", dt_rank, n_inner, bias=True, type_name="F32")
    t.decay(f"{prefix}ssm_a", (n_inner, n_state))
    t.vector(f"{prefix}ssm_d", n_inner, mean=1.0)
    t.matrix(f"{prefix}ssm_out", n_inner, shape.n_embd, gain=3.0)


def lfm2(t: RandomTensors, shape: Shape, *, keys: Mapping[str, int] | None = None, n_expert: int = 0) -> None:
    """Short convolutions in even layers, attention in odd ones; experts but in the first layer, if asked for.

    The final norm has the name `token_embd_norm`.
    """
    for key, value in (keys or {}).items():
        t.key(key, value)
    n_head_kv = _attention_in_odd_layers(t, shape)
    t.key("shortconv.l_cache", 3)
    n_ff_expert = shape.n_ff // 4
    if n_expert:
        t.key("leading_dense_block_count", 1)
        expert_keys(t, n_expert, n_ff_expert)
        t.key("expert_gating_func", 2)
    for i, prefix in enumerate(layers(t, shape, final="token_embd_norm")):
        if n_head_kv[i]:
            attention(t, shape, prefix, n_head_kv=n_head_kv[i], qk_norm=True)
        else:
            t.matrix(f"{prefix}shortconv.in_proj", shape.n_embd, 3 * shape.n_embd)
            t.matrix(f"{prefix}shortconv.conv", 3, shape.n_embd, type_name="F32")
            t.matrix(f"{prefix}shortconv.out_proj", shape.n_embd, shape.n_embd)
        t.norm(f"{prefix}ffn_norm", shape.n_embd)
        if n_expert and i > 0:
            experts(t, shape, prefix, n_expert, n_ff_expert)
            t.vector(f"{prefix}exp_probs_b.bias", n_expert)
        else:
            gated_ffn(t, shape, prefix)


def _attention_in_odd_layers(t: RandomTensors, shape: Shape) -> list[int]:
    """The key and value heads of each layer, as the file says them."""
    n_head_kv = [shape.n_head_kv if i % 2 else 0 for i in range(shape.n_layer)]
    t.keys("attention", head_count=shape.n_head, head_count_kv=n_head_kv)
    return n_head_kv


def _layers_with_odd_attention(
    t: RandomTensors, shape: Shape, recurrent: Callable[[RandomTensors, Shape, str], None]
) -> None:
    n_head_kv = _attention_in_odd_layers(t, shape)
    for i, prefix in enumerate(layers(t, shape)):
        if n_head_kv[i]:
            attention(t, shape, prefix, n_head_kv=n_head_kv[i])
        else:
            recurrent(t, shape, prefix)
        t.norm(f"{prefix}ffn_norm", shape.n_embd)
        gated_ffn(t, shape, prefix)


def granite_hybrid(t: RandomTensors, shape: Shape) -> None:
    """Mamba 2 in even layers, attention in odd ones, and Granite's scale of the logits."""
    t.key("logit_scale", 1.5)
    _mamba2_keys(t, shape, n_group=1)
    _layers_with_odd_attention(t, shape, partial(_mamba2_layer, n_group=1))


def falcon_h1(t: RandomTensors, shape: Shape) -> None:
    """Attention and Mamba 2 beside each other in every layer, their results added."""
    head_keys(t, shape)
    _mamba2_keys(t, shape, n_group=2)
    for prefix in layers(t, shape):
        attention(t, shape, prefix, n_head_kv=shape.n_head_kv)
        _mamba2_layer(t, shape, prefix, n_group=2)
        t.vector(f"{prefix}ffn_norm", shape.n_embd, mean=1.0)
        gated_ffn(t, shape, prefix)


def nemotron_h(t: RandomTensors, shape: Shape, *, n_expert: int = 0) -> None:
    """One thing in each layer: Mamba 2, a network without a gate or with experts, attention, such a network again."""
    kinds = [("mamba", "network", "attention", "network")[i % 4] for i in range(shape.n_layer)]
    n_head_kv = [shape.n_head_kv if kind == "attention" else 0 for kind in kinds]
    t.keys("attention", head_count=shape.n_head, head_count_kv=n_head_kv)
    t.key("feed_forward_length", [shape.n_ff if kind == "network" else 0 for kind in kinds])
    _mamba2_keys(t, shape, n_group=2)
    n_ff_expert = shape.n_ff // 4
    if n_expert:
        expert_keys(t, n_expert, n_ff_expert, has_shared=True)
        t.key("expert_weights_norm", True)
        t.key("expert_weights_scale", 1.5)
    for kind, prefix in zip(kinds, layers(t, shape), strict=True):
        if kind == "mamba":
            _mamba2_layer(t, shape, prefix, n_group=2)
        elif kind == "attention":
            attention(t, shape, prefix, n_head_kv=shape.n_head_kv)
        elif n_expert:
            experts(t, shape, prefix, n_expert, n_ff_expert, has_gate=False)
            t.vector(f"{prefix}exp_probs_b.bias", n_expert)
            t.matrix(f"{prefix}ffn_up_shexp", shape.n_embd, n_ff_expert)
            t.matrix(f"{prefix}ffn_down_shexp", n_ff_expert, shape.n_embd, gain=2.0)
        else:
            plain_ffn(t, shape, prefix)


def _mamba2_keys(t: RandomTensors, shape: Shape, *, n_group: int) -> None:
    t.keys("ssm", conv_kernel=4, inner_size=2 * shape.n_embd, state_size=_N_STATE_2)
    t.keys("ssm", time_step_rank=8, group_count=n_group)


def _mamba2_layer(t: RandomTensors, shape: Shape, prefix: str, *, n_group: int) -> None:
    n_inner, n_conv, n_head = 2 * shape.n_embd, 4, 8
    n_mixed = n_inner + 2 * n_group * _N_STATE_2
    t.matrix(f"{prefix}ssm_in", shape.n_embd, n_inner + n_mixed + n_head)
    t.matrix(f"{prefix}ssm_conv1d", n_conv, n_mixed, bias=True, type_name="F32")
    t.vector(f"{prefix}ssm_dt.bias", n_head)
    t.decay(f"{prefix}ssm_a", (n_head, 1))
    t.vector(f"{prefix}ssm_d", (n_head, 1), mean=1.0)
    t.vector(f"{prefix}ssm_norm.weight", (n_group, n_inner // n_group), mean=1.0)
    t.matrix(f"{prefix}ssm_out", n_inner, shape.n_embd, gain=3.0)


def _jamba_layer(t: RandomTensors, shape: Shape, prefix: str) -> None:
    _mamba_layer(t, shape, prefix)
    for name, n in (("dt", shape.n_embd // 16), ("b", 16), ("c", 16)):
        t.norm(f"{prefix}ssm_{name}_norm", n)


def jamba(t: RandomTensors, shape: Shape) -> None:
    """Mamba with norms of its parameters in even layers, attention without positions in odd ones."""
    _mamba_keys(t, shape)
    _layers_with_odd_attention(t, shape, _jamba_layer)


def plamo2(t: RandomTensors, shape: Shape) -> None:
    """Mamba with heads and norms in front of and after each part; odd layers, of which there are none here, differ."""
    _attention_in_odd_layers(t, shape)
    n_inner, n_state, n_conv, n_ssm_head, dt_rank = 2 * shape.n_embd, 16, 4, 8, 64
    t.keys("attention", key_length=shape.head_dim, value_length=shape.head_dim)
    t.keys("ssm", conv_kernel=n_conv, inner_size=n_inner, state_size=n_state, time_step_rank=n_ssm_head, group_count=0)
    for prefix in layers(t, shape):
        t.matrix(f"{prefix}ssm_in", shape.n_embd, 2 * n_inner)
        t.matrix(f"{prefix}ssm_conv1d", n_conv, n_inner, type_name="F32")
        t.matrix(f"{prefix}ssm_x", n_inner, dt_rank + 2 * n_state)
        t.matrix(f"{prefix}ssm_dt", dt_rank, n_ssm_head, bias=True, type_name="F32")
        t.decay(f"{prefix}ssm_a", n_ssm_head)
        t.vector(f"{prefix}ssm_d", n_ssm_head, mean=1.0)
        t.matrix(f"{prefix}ssm_out", n_inner, shape.n_embd, gain=3.0)
        for name, n in (("dt", dt_rank), ("b", n_state), ("c", n_state)):
            t.vector(f"{prefix}ssm_{name}_norm", n, mean=1.0)
        t.vector(f"{prefix}post_attention_norm", shape.n_embd, mean=1.0)
        t.norm(f"{prefix}ffn_norm", shape.n_embd)
        t.matrix(f"{prefix}ffn_up", shape.n_embd, 2 * shape.n_ff)  # the gate and its factor in one
        t.matrix(f"{prefix}ffn_down", shape.n_ff, shape.n_embd, gain=2.0)
        t.vector(f"{prefix}post_ffw_norm", shape.n_embd, mean=1.0)


HYBRIDS: dict[str, ArchSpec] = {
    "lfm2": ArchSpec(lfm2, memory="hybrid"),
    # lfm2.cpp: attention layers have a window where the file says so
    "lfm2_window": ArchSpec(partial(lfm2, keys={"attention.sliding_window": 8}), arch="lfm2", memory="hybrid"),
    # lfm2.cpp, of which lfm2moe.cpp takes the graph: head times final norm
    "lfm2moe": ArchSpec(partial(lfm2, n_expert=4), memory="hybrid"),
    # granite-hybrid.cpp: divides by logit_scale where the file has it
    "granitehybrid": ArchSpec(granite_hybrid, tail="scale", memory="hybrid"),
    "qwen35": ArchSpec(qwen35, memory="hybrid"),
    # qwen35.cpp: a block after the layers is for guessing several tokens
    "qwen35_more": ArchSpec(partial(qwen35, predicts_more=True), arch="qwen35", memory="hybrid"),
    "qwen35moe": ArchSpec(partial(qwen35, n_expert=4), memory="hybrid"),
    "qwen3next": ArchSpec(qwen3next, memory="hybrid"),
    "kimi-linear": ArchSpec(kimi_linear, memory="hybrid", head="untied"),
    "bailingmoe3": ArchSpec(partial(kimi_linear, is_ling=True), memory="hybrid"),
    "nemotron_h": ArchSpec(nemotron_h, memory="hybrid", n_layer=4),
    "nemotron_h_moe": ArchSpec(partial(nemotron_h, n_expert=4), memory="hybrid", n_layer=4),
    "falcon-h1": ArchSpec(falcon_h1, memory="hybrid"),
    "jamba": ArchSpec(jamba, memory="hybrid"),
    # which is refused when it is loaded
    "plamo2": ArchSpec(plamo2, memory="hybrid", n_layer=1),
}
"""By name, as ARCHS has all models."""
KINDS_OF_STATES = ("lfm2", "qwen35", "granitehybrid")
"""One of each kind of state: short convolutions, delta nets, Mamba 2."""
