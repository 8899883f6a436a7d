"""Small random-weight GGUF files of many architectures, for tests against llama.cpp.

`ARCHS` lists the models and says what their graph does behind the final norm; `write_model` writes one, below 5 MB (t5:
11 MB). Matrices keep activations near unit size, so that logits spread over a few units and depend on the context.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter, PoolingType
from gguf_parts import finish
from random_gemma import gemma3n, gemma4
from random_hybrids import HYBRIDS, mamba
from random_layers import (
    CONTEXT_LENGTH,
    ArchSpec,
    Shape,
    biased_decoder,
    chameleon,
    decoder,
    grok,
    latent_decoder,
    longrope_decoder,
    sinks_decoder,
    t5,
)
from random_tensors import RandomTensors
from random_vocab import VocabKind, build_vocab

LOGIT_SPREAD = 2.5


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
    `keys`, with the architecture before them, to the file. `pointer` is the size of a pointer head, as llama.cpp's
    converter writes it.
    """
    spec = ARCHS[name]
    if tied is None:
        tied = spec.head == "tied"
    if spec.head in ("tied", "untied") and tied != (spec.head == "tied"):
        raise ValueError(f"tied={tied}: the head of a {name} model is always {spec.head}")
    tokens = build_vocab(vocab).with_control(control_tokens)
    tokens = replace(tokens, pre=tokens.pre if pre is None else pre)
    if n_vocab is not None:
        tokens = tokens.padded(n_vocab)
    n_layer = spec.n_layer if n_layer is None else n_layer
    shape = Shape(n_layer=n_layer, n_embd=n_embd, n_ff=n_ff, n_vocab=len(tokens.tokens), heads=heads)

    writer = GGUFWriter(path, spec.arch or name)
    writer.add_name(f"random-{name}")
    tokens.write(writer, add_bos=add_bos)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    tensors = RandomTensors(writer, np.random.default_rng(seed), weight_type)
    for key, value in {
        "context_length": CONTEXT_LENGTH,
        "block_count": n_layer,
        "embedding_length": n_embd,
        "feed_forward_length": n_ff,
        "attention.layer_norm_epsilon": 1e-5,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }.items():
        tensors.key(key, value)
    for key, given in (keys or {}).items():
        if isinstance(given, str):
            writer.add_string(f"{writer.arch}.{key}", given)
        else:
            tensors.key(key, given)
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
    "longrope": ArchSpec(longrope_decoder, arch="phi3"),
    # starcoder2.cpp: the final norm is a LayerNorm with bias
    "starcoder2": ArchSpec(partial(biased_decoder, ffn_norm=True)),
    # refact.cpp: ALiBi instead of rotations
    "refact": ArchSpec(decoder),
    # openai-moe.cpp: every head has a sink
    "gpt-oss": ArchSpec(sinks_decoder, memory="window", head="untied"),
    # qwen2.cpp: adds output.bias where the file has it
    "qwen2_bias": ArchSpec(partial(decoder, qkv_bias=True), arch="qwen2", tail="bias", head="untied"),
    # phi2.cpp: adds output.bias, which every file has
    "phi2": ArchSpec(partial(biased_decoder, ffn_norm=False), tail="bias", head="untied"),
    # granite.cpp: divides by logit_scale, which every file has
    "granite": ArchSpec(partial(decoder, keys={"logit_scale": 1.5}), tail="scale"),
    # minicpm.cpp with granite.cpp's graph: divides by logit_scale, or by 256 / n_embd in files without it
    "minicpm": ArchSpec(partial(decoder, keys={"logit_scale": 1.5}), tail="scale"),
    # minicpm.cpp: multiplies by n_embd / 256
    "minicpm_old": ArchSpec(decoder, arch="minicpm", tail="scale"),
    # minicpm3.cpp: multiplies the final norm by 256 / n_embd before the head
    "minicpm3": ArchSpec(latent_decoder, tail="scale"),
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
    "grok": ArchSpec(grok, tail="softcap"),
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
    "chameleon": ArchSpec(chameleon, tail="other"),
    "mamba": ArchSpec(mamba, memory="recurrent"),
    **HYBRIDS,
    # t5.cpp: the decoder's graph is head times final norm, the encoder's graph has no logits
    "t5": ArchSpec(t5, memory="encoder"),
    # dream.cpp: attention is not causal
    "dream": ArchSpec(partial(decoder, qkv_bias=True), memory="none"),
}
"""By name; comments are findings in llama.cpp's src/models."""
