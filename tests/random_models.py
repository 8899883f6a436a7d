"""Small random-weight GGUF files of many architectures, for tests against llama.cpp.

`ARCHS` lists the models and says what their graph does behind the final norm; `write_model` writes one, below 5 MB (t5:
11 MB). Matrices keep activations near unit size, so that logits spread over a few units and depend on the context.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gguf import GGUFWriter, PoolingType
from random_delta_nets import kimi_linear, qwen3next, qwen35
from random_gemma import gemma3n, gemma4
from random_hybrids import falcon_h1, granite_hybrid, jamba, lfm2, mamba, nemotron_h, plamo2
from random_layers import (
    CONTEXT_LENGTH,
    Shape,
    bert,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchSpec:
    """One kind of model.

    `arch` is llama.cpp's name of the architecture. `tail` is what turns the final norm's result into logits: the
    product with the head alone, or more, or something that no scorer here knows, or there are no logits. `memory` is
    what the model keeps of earlier tokens: all keys and values, those of a window in some layers, a recurrent state,
    keys and values in some layers and a state in others, those of an encoder too, or nothing (each token attends to
    later ones as well). `head` says whether the head is the token embedding. `n_layer` is how many layers a model has
    unless told otherwise. `note` is the finding in llama.cpp's `src/models`.
    """

    arch: str
    build: Callable[[RandomTensors, Shape], None]
    tail: Literal["head", "bias", "scale", "softcap", "other", "none"] = "head"
    memory: Literal["full", "window", "recurrent", "hybrid", "encoder", "none"] = "full"
    head: Literal["either", "tied", "untied", "none"] = "either"
    n_layer: int = 2
    note: str

    @property
    def is_plain(self) -> bool:
        """Whether logits are exactly head times final norm, and every layer attends to all earlier tokens."""
        return self.tail == "head" and self.memory == "full"


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
    add_bos: bool = False,
    control_tokens: Sequence[str] = (),
    chat_template: str | None = None,
    seed: int = 0,
) -> Path:
    """Write the model `ARCHS[name]` to `path` and return `path`.

    `tied` None means untied where the architecture allows it. `head_type` is the type of the matrix that gives the
    logits, `weight_type` of the other matrices: F32, F16, BF16, Q8_0, Q4_K, Q6_K. `n_embd` and `n_ff` are multiples of
    256. `heads` is (head size, query heads, key and value heads), for models of `decoder`; otherwise heads have 64
    values, and there are two query heads to a key. `n_vocab` pads the vocabulary with unused tokens.
    `control_tokens` are added to the vocabulary, `chat_template` to the file.
    """
    spec = ARCHS[name]
    if tied is None:
        tied = spec.head == "tied"
    if spec.head in ("tied", "untied") and tied != (spec.head == "tied"):
        raise ValueError(f"tied={tied}: the head of a {name} model is always {spec.head}")
    tokens = build_vocab(vocab).with_control(control_tokens)
    if n_vocab is not None:
        tokens = tokens.padded(n_vocab)
    n_layer = spec.n_layer if n_layer is None else n_layer
    shape = Shape(n_layer=n_layer, n_embd=n_embd, n_ff=n_ff, n_vocab=len(tokens.tokens), heads=heads)

    writer = GGUFWriter(path, spec.arch)
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
    embedding_type = head_type if tied else None
    tensors.matrix("token_embd", n_embd, len(tokens.tokens), gain=LOGIT_SPREAD, type_name=embedding_type)
    if not tied and spec.head != "none":
        has_bias = spec.tail == "bias"
        tensors.matrix("output", n_embd, len(tokens.tokens), gain=LOGIT_SPREAD, type_name=head_type, bias=has_bias)
    spec.build(tensors, shape)

    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


WITH_ANOTHER_TAIL: dict[str, Any] = {"name": "chameleon", "n_vocab": 8300, "n_layer": 1, "weight_type": "Q8_0"}
"""What `write_model` makes a model of that no hidden-only context can be opened for."""

_WINDOW = {"attention.sliding_window": 8, "attention.sliding_window_pattern": 2}

ARCHS: dict[str, ArchSpec] = {
    "qwen3": ArchSpec(
        arch="qwen3",
        build=partial(decoder, qk_norm=True),
        note="qwen3.cpp: head times final norm",
    ),
    "qwen3moe": ArchSpec(
        arch="qwen3moe",
        build=partial(decoder, qk_norm=True, n_expert=4),
        note="qwen3moe.cpp: head times final norm",
    ),
    "qwen2": ArchSpec(
        arch="qwen2",
        build=partial(decoder, qkv_bias=True),
        note="qwen2.cpp: head times final norm; a bias follows only where the file has output.bias",
    ),
    "qwen3_pooled": ArchSpec(
        arch="qwen3",
        build=partial(decoder, keys={"pooling_type": PoolingType.LAST.value}, qk_norm=True),
        note="qwen3.cpp: head times final norm; pooling applies to contexts with embeddings only",
    ),
    "qwen3_bidirectional": ArchSpec(
        arch="qwen3",
        build=partial(decoder, keys={"attention.causal": False}, qk_norm=True),
        memory="none",
        note="qwen3.cpp: head times final norm, tokens attend to later ones",
    ),
    "llama": ArchSpec(
        arch="llama",
        build=decoder,
        note="llama.cpp: head times final norm",
    ),
    "mistral3": ArchSpec(
        arch="mistral3",
        build=decoder,
        note="mistral3.cpp: head times final norm",
    ),
    "longrope": ArchSpec(
        arch="phi3",
        build=longrope_decoder,
        note="phi3.cpp: head times final norm; RoPE factors by the size of the cache, not of a sequence",
    ),
    "starcoder2": ArchSpec(
        arch="starcoder2",
        build=partial(biased_decoder, ffn_norm=True),
        note="starcoder2.cpp: head times final norm, which is a LayerNorm with bias",
    ),
    "refact": ArchSpec(
        arch="refact",
        build=decoder,
        note="refact.cpp: head times final norm; ALiBi instead of rotations",
    ),
    "gpt-oss": ArchSpec(
        arch="gpt-oss",
        build=sinks_decoder,
        memory="window",
        head="untied",
        note="openai-moe.cpp: head times final norm; every head has a sink",
    ),
    "qwen2_bias": ArchSpec(
        arch="qwen2",
        build=partial(decoder, qkv_bias=True),
        tail="bias",
        head="untied",
        note="qwen2.cpp: adds output.bias where the file has it",
    ),
    "phi2": ArchSpec(
        arch="phi2",
        build=partial(biased_decoder, ffn_norm=False),
        tail="bias",
        head="untied",
        note="phi2.cpp: adds output.bias, which every file has",
    ),
    "granite": ArchSpec(
        arch="granite",
        build=partial(decoder, keys={"logit_scale": 1.5}),
        tail="scale",
        note="granite.cpp: divides by logit_scale, which every file has",
    ),
    "minicpm": ArchSpec(
        arch="minicpm",
        build=partial(decoder, keys={"logit_scale": 1.5}),
        tail="scale",
        note="minicpm.cpp with granite.cpp's graph: divides by logit_scale, or by 256 / n_embd in files without it",
    ),
    "minicpm_old": ArchSpec(
        arch="minicpm",
        build=decoder,
        tail="scale",
        note="minicpm.cpp: multiplies by n_embd / 256",
    ),
    "minicpm3": ArchSpec(
        arch="minicpm3",
        build=latent_decoder,
        tail="scale",
        note="minicpm3.cpp: multiplies the final norm by 256 / n_embd before the head",
    ),
    "command-r": ArchSpec(
        arch="command-r",
        build=partial(decoder, keys={"logit_scale": 0.5}, ffn_norm=False),
        tail="scale",
        head="tied",
        note="command-r.cpp: multiplies by logit_scale where the file has it",
    ),
    "cohere2": ArchSpec(
        arch="cohere2",
        build=partial(decoder, keys={**_WINDOW, "logit_scale": 0.5}, ffn_norm=False),
        tail="scale",
        memory="window",
        head="tied",
        note="cohere2.cpp: multiplies by logit_scale, which every file has",
    ),
    "grok": ArchSpec(
        arch="grok",
        build=grok,
        tail="softcap",
        note="grok.cpp: multiplies by logit_scale, then caps at final_logit_softcapping where the file has it",
    ),
    "gemma2": ArchSpec(
        arch="gemma2",
        build=partial(decoder, keys={**_WINDOW, "final_logit_softcapping": 3.0}, post_norm=True),
        tail="softcap",
        memory="window",
        head="tied",
        note="gemma2.cpp: caps logits at final_logit_softcapping, or at 30 in files without it",
    ),
    "gemma3n": ArchSpec(
        arch="gemma3n",
        build=gemma3n,
        tail="softcap",
        memory="window",
        note="gemma3n.cpp: caps logits at 30, whatever the file says",
    ),
    "gemma4": ArchSpec(
        arch="gemma4",
        build=gemma4,
        tail="softcap",
        memory="window",
        n_layer=4,
        note="gemma4.cpp: caps logits at final_logit_softcapping, or at 30 in files without it",
    ),
    "gemma3": ArchSpec(
        arch="gemma3",
        build=partial(decoder, keys=_WINDOW, qk_norm=True, post_norm=True),
        memory="window",
        note="gemma3.cpp: head times final norm; logits are capped only where the file says so",
    ),
    "gemma3_full": ArchSpec(
        arch="gemma3",
        build=partial(decoder, qk_norm=True, post_norm=True),
        note="gemma3.cpp: no layer has a window in files without attention.sliding_window",
    ),
    "chameleon": ArchSpec(
        arch="chameleon",
        build=chameleon,
        tail="other",
        note="chameleon.cpp: overwrites the logits of tokens 4 to 8195",
    ),
    "mamba": ArchSpec(
        arch="mamba",
        build=mamba,
        memory="recurrent",
        note="mamba.cpp: head times final norm",
    ),
    "lfm2": ArchSpec(
        arch="lfm2",
        build=lfm2,
        memory="hybrid",
        note="lfm2.cpp: head times final norm",
    ),
    "lfm2_window": ArchSpec(
        arch="lfm2",
        build=partial(lfm2, keys={"attention.sliding_window": 8}),
        memory="hybrid",
        note="lfm2.cpp: attention layers have a window where the file says so",
    ),
    "lfm2moe": ArchSpec(
        arch="lfm2moe",
        build=partial(lfm2, n_expert=4),
        memory="hybrid",
        note="lfm2.cpp, of which lfm2moe.cpp takes the graph: head times final norm",
    ),
    "granitehybrid": ArchSpec(
        arch="granitehybrid",
        build=granite_hybrid,
        tail="scale",
        memory="hybrid",
        note="granite-hybrid.cpp: divides by logit_scale where the file has it",
    ),
    "qwen35": ArchSpec(
        arch="qwen35",
        build=qwen35,
        memory="hybrid",
        note="qwen35.cpp: head times final norm",
    ),
    "qwen35_more": ArchSpec(
        arch="qwen35",
        build=partial(qwen35, predicts_more=True),
        memory="hybrid",
        note="qwen35.cpp: head times final norm; a block behind the layers is for guessing several tokens",
    ),
    "qwen35moe": ArchSpec(
        arch="qwen35moe",
        build=partial(qwen35, n_expert=4),
        memory="hybrid",
        note="qwen35moe.cpp: head times final norm",
    ),
    "qwen3next": ArchSpec(
        arch="qwen3next",
        build=qwen3next,
        memory="hybrid",
        note="qwen3next.cpp: head times final norm",
    ),
    "kimi-linear": ArchSpec(
        arch="kimi-linear",
        build=kimi_linear,
        memory="hybrid",
        head="untied",
        note="kimi-linear.cpp: head times final norm",
    ),
    "bailingmoe3": ArchSpec(
        arch="bailingmoe3",
        build=partial(kimi_linear, is_ling=True),
        memory="hybrid",
        note="bailingmoe3.cpp: head times final norm",
    ),
    "nemotron_h": ArchSpec(
        arch="nemotron_h",
        build=nemotron_h,
        memory="hybrid",
        n_layer=4,
        note="nemotron-h.cpp: head times final norm",
    ),
    "nemotron_h_moe": ArchSpec(
        arch="nemotron_h_moe",
        build=partial(nemotron_h, n_expert=4),
        memory="hybrid",
        n_layer=4,
        note="nemotron-h.cpp: head times final norm",
    ),
    "falcon-h1": ArchSpec(
        arch="falcon-h1",
        build=falcon_h1,
        memory="hybrid",
        note="falcon-h1.cpp: head times final norm",
    ),
    "jamba": ArchSpec(
        arch="jamba",
        build=jamba,
        memory="hybrid",
        note="jamba.cpp: head times final norm",
    ),
    "plamo2": ArchSpec(
        arch="plamo2",
        build=plamo2,
        memory="hybrid",
        note="plamo2.cpp: head times final norm",
    ),
    "t5": ArchSpec(
        arch="t5",
        build=t5,
        memory="encoder",
        note="t5.cpp: the decoder's graph is head times final norm, the encoder's graph has no logits",
    ),
    "dream": ArchSpec(
        arch="dream",
        build=partial(decoder, qkv_bias=True),
        memory="none",
        note="dream.cpp: head times final norm, attention is not causal",
    ),
    "bert": ArchSpec(
        arch="bert",
        build=bert,
        tail="none",
        memory="none",
        head="none",
        note="bert.cpp: no logits",
    ),
}
