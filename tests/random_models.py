"""The layers of small random Gemma 3n and Gemma 4 models: embeddings of their own for each layer, shared keys.

Small random-weight GGUF files of many architectures, for tests against llama.cpp.

`ARCHS` lists the models and says what their graph does behind the final norm; `write_model` writes one, below 5 MB (t5:
11 MB). Matrices keep activations near unit size, so that logits spread over a few units and depend on the context.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import random_layers
from gguf import GGUFWriter, PoolingType, TokenType
from gguf_parts import finish
from random_hybrids import HYBRIDS, mamba
from random_layers import HEAD_DIM, ArchSpec, Shape, attention, decoder, gated_ffn, head_keys, layers, shape_keys
from random_tensors import LOGIT_SPREAD, RandomTensors
from random_vocab import VocabKind, build_vocab

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


def write_model(
    path: Path,
    name: str = "qwen3",
    *,
    tied: bool | None = None,
    head_type: str = "F32",
    weight_type: str = "F32",
    n_layer: int | None = None,
    n_embd: int = 256,
    n_ff: int = 256,
    heads: tuple[int, int, int] | None = None,
    n_vocab: int | None = None,
    vocab: VocabKind = "bpe",
    pre: str | None = None,
    add_bos: bool = False,
    control_tokens: Sequence[str] = (),
    chat_template: str | list[dict[str, str]] | None = None,
    keys: Mapping[str, float | str] | None = None,
    pointer: int | None = None,
    seed: int = 0,
) -> Path:
    """Write the model `ARCHS[name]` to `path` and return `path`.

    `tied` None means untied where the architecture allows it. `head_type` is the type of the matrix that gives the
    logits, `weight_type` of the other matrices: F32, F16, BF16, Q8_0, Q4_K, Q6_K. `n_embd` and `n_ff` are multiples of
    256. `heads` is (head size, query heads, key and value heads), for models of `decoder`; otherwise heads have 64
    values, and there are two query heads to a key. `n_vocab` pads the vocabulary with unused tokens, `pre` names a
    pre-tokeniser. `control_tokens` are added to the vocabulary, `chat_template` (or several with their names) and
    `keys`, with the architecture before them, to the file. `pointer` is the size of a pointer head, as
    llama.cpp's converter writes it.
    """
    spec = ARCHS[name]
    tied = spec.head == "tied" if tied is None else tied
    if spec.head in ("tied", "untied") and tied != (spec.head == "tied"):
        raise ValueError(f"tied={tied}: the head of a {name} model is always {spec.head}")
    tokens = build_vocab(vocab)
    tokens = tokens.extended({text: TokenType.CONTROL for text in control_tokens if text not in tokens.tokens})
    tokens = tokens.extended({f"<|unused_{i}|>": TokenType.UNUSED for i in range((n_vocab or 0) - len(tokens.tokens))})
    tokens = replace(tokens, pre=tokens.pre if pre is None else pre)
    n_layer = spec.n_layer if n_layer is None else n_layer
    heads = heads or (HEAD_DIM, n_embd // HEAD_DIM, n_embd // HEAD_DIM // 2)
    shape = Shape(n_layer, n_embd, n_ff, len(tokens.tokens), *heads)

    writer = GGUFWriter(path, spec.arch or name)
    writer.add_name(f"random-{name}")
    tokens.write(writer, add_bos=add_bos)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    tensors = RandomTensors(writer, np.random.default_rng(seed), weight_type)
    shape_keys(tensors, shape)
    tensors.keys("attention", layer_norm_epsilon=1e-5, layer_norm_rms_epsilon=1e-5)
    for key, value in (keys or {}).items():
        tensors.key(key, value)
    embedding_type = head_type if tied else None
    tensors.matrix("token_embd", n_embd, len(tokens.tokens), gain=LOGIT_SPREAD, type_name=embedding_type)
    if not tied:
        has_bias = spec.tail == "bias"
        tensors.matrix("output", n_embd, len(tokens.tokens), gain=LOGIT_SPREAD, type_name=head_type, bias=has_bias)
    spec.build(tensors, shape)
    if pointer is not None:
        tensors.key("embedding_length_out", 2 * pointer)
        tensors.matrix("cls.output", n_embd, 2 * pointer, gain=1.5, bias=True)
    finish(writer)
    return path


WITH_ANOTHER_TAIL: dict[str, Any] = {"name": "chameleon", "n_vocab": 8300, "n_layer": 1, "weight_type": "Q8_0"}
"""What `write_model` makes a model of that no hidden-only context can be opened for."""

_WINDOW = {"attention.sliding_window": 8, "attention.sliding_window_pattern": 2}

ARCHS: dict[str, ArchSpec] = {
    "qwen3": ArchSpec(partial(decoder, qk_norm=True)),
    "qwen3moe": ArchSpec(partial(decoder, qk_norm=True, n_expert=4)),
    # qwen2.cpp: a bias follows only where the file has output.bias
    "qwen2": ArchSpec(partial(decoder, qkv_bias=True)),
    # qwen3.cpp: pooling applies to contexts with embeddings only
    "qwen3_pooled": ArchSpec(
        partial(decoder, keys={"pooling_type": PoolingType.LAST.value}, qk_norm=True), arch="qwen3"
    ),
    # qwen3.cpp: tokens attend to later ones
    "qwen3_bidirectional": ArchSpec(
        partial(decoder, keys={"attention.causal": False}, qk_norm=True), arch="qwen3", memory="none"
    ),
    "llama": ArchSpec(decoder),
    "mistral3": ArchSpec(decoder),
    # phi3.cpp: RoPE factors by the size of the cache, not of a sequence
    "longrope": ArchSpec(random_layers.longrope_decoder, arch="phi3"),
    # starcoder2.cpp: the final norm is a LayerNorm with bias
    "starcoder2": ArchSpec(partial(random_layers.biased_decoder, ffn_norm=True)),
    # refact.cpp: ALiBi instead of rotations
    "refact": ArchSpec(decoder),
    # openai-moe.cpp: every head has a sink
    "gpt-oss": ArchSpec(random_layers.sinks_decoder, memory="window", head="untied"),
    # qwen2.cpp: adds output.bias where the file has it
    "qwen2_bias": ArchSpec(partial(decoder, qkv_bias=True), arch="qwen2", tail="bias", head="untied"),
    # phi2.cpp: adds output.bias, which every file has
    "phi2": ArchSpec(partial(random_layers.biased_decoder, ffn_norm=False), tail="bias", head="untied"),
    # granite.cpp: divides by logit_scale, which every file has
    "granite": ArchSpec(partial(decoder, keys={"logit_scale": 1.5}), tail="scale"),
    # minicpm.cpp with granite.cpp's graph: divides by logit_scale, or by 256 / n_embd in files without it
    "minicpm": ArchSpec(partial(decoder, keys={"logit_scale": 1.5}), tail="scale"),
    # minicpm.cpp: multiplies by n_embd / 256
    "minicpm_old": ArchSpec(decoder, arch="minicpm", tail="scale"),
    # minicpm3.cpp: multiplies the final norm by 256 / n_embd before the head
    "minicpm3": ArchSpec(random_layers.latent_decoder, tail="scale"),
    # command-r.cpp: multiplies by logit_scale where the file has it
    "command-r": ArchSpec(partial(decoder, keys={"logit_scale": 0.5}, ffn_norm=False), tail="scale", head="tied"),
    # cohere2.cpp: multiplies by logit_scale, which every file has
    "cohere2": ArchSpec(
        partial(decoder, keys={**_WINDOW, "logit_scale": 0.5}, ffn_norm=False),
        tail="scale",
        memory="window",
        head="tied",
    ),
    # grok.cpp: multiplies by logit_scale, then caps at final_logit_softcapping where the file has it
    "grok": ArchSpec(random_layers.grok, tail="softcap"),
    # gemma2.cpp: caps logits at final_logit_softcapping, or at 30 in files without it
    "gemma2": ArchSpec(
        partial(decoder, keys={**_WINDOW, "final_logit_softcapping": 3.0}, post_norm=True),
        tail="softcap",
        memory="window",
        head="tied",
    ),
    # gemma3n.cpp: caps logits at 30, whatever the file says
    "gemma3n": ArchSpec(gemma3n, tail="softcap", memory="window"),
    # gemma4.cpp: caps logits at final_logit_softcapping, or at 30 in files without it
    "gemma4": ArchSpec(gemma4, tail="softcap", memory="window", n_layer=4),
    # gemma3.cpp: logits are capped only where the file says so
    "gemma3": ArchSpec(partial(decoder, keys=_WINDOW, qk_norm=True, post_norm=True), memory="window"),
    # gemma3.cpp: no layer has a window in files without attention.sliding_window
    "gemma3_full": ArchSpec(partial(decoder, qk_norm=True, post_norm=True), arch="gemma3"),
    # chameleon.cpp: overwrites the logits of tokens 4 to 8195
    "chameleon": ArchSpec(random_layers.chameleon, tail="other"),
    "mamba": ArchSpec(mamba, memory="recurrent"),
    **HYBRIDS,
    # t5.cpp: the decoder's graph is head times final norm, the encoder's graph has no logits
    "t5": ArchSpec(random_layers.t5, memory="encoder"),
    # dream.cpp: attention is not causal
    "dream": ArchSpec(partial(decoder, qkv_bias=True), memory="none"),
}
"""By name; comments are findings in llama.cpp's src/models."""
