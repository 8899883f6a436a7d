"""Files with the shapes of published models and random weights, for timing: `python tests/timing_models.py NAME FILE`.

They have the tensors, sizes, vocabulary size and mix of types (llama-quantize's Q4_K_M) of the real files, so that
llama.cpp takes the same time for them; what they answer means nothing. A file is made in memory, as large as it is.

The tokens are those of the vocabulary that comes with llama.cpp (Qwen2's), with unused ones up to the model's number:
the head has as many rows as the real one.

With a third argument, such as `kev`, the file is a decision model of that kind, with a template of the tests.
"""

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from chat_templates import TEMPLATES
from gguf import GGUFReader, GGUFWriter, LlamaFileType, TokenType
from gguf_parts import finish
from random_delta_nets import DeltaNet, qwen35
from random_layers import Shape, decoder, shape_keys
from random_tensors import LOGIT_SPREAD, RandomTensors
from random_vocab import BOS, IM_END, Vocab

VOCAB_FILE = Path(__file__).parents[1] / "vendor/llama.cpp/models/ggml-vocab-qwen2.gguf"
_N_POINTER = 256  # of the published models of kind kev
Sizes = tuple[int, int, int, tuple[int, int, int], bool]
"""Layers, values of a state and within the network, (head size, query heads, heads of keys), whether the head is the
token embedding."""
QWEN3: dict[str, Sizes] = {
    "qwen3-0.6b": (28, 1024, 3072, (128, 16, 8), True),
    "qwen3-4b": (36, 2560, 9728, (128, 32, 8), True),
    "qwen3-8b": (36, 4096, 12288, (128, 32, 8), False),
}
QWEN35: dict[str, Sizes] = {
    "qwen3.5-0.8b": (24, 1024, 3584, (256, 8, 2), True),
    "qwen3.5-4b": (32, 2560, 9216, (256, 16, 4), True),
    "qwen3.5-9b": (32, 4096, 12288, (256, 16, 4), False),
}


@dataclass(frozen=True, slots=True)
class _TimingTensors(RandomTensors):
    """Random tensors whose matrices have the types of Q4_K_M."""

    n_layer: int
    is_tied: bool

    def matrix(self, name: str, n_in: int, n_out: int, **options: Any) -> None:
        """In llama-quantize's choice of types (src/llama-quant.cpp): more bits for the head, for values and for the way
        back from the network, of these in the first and last eighth of the layers and in every third one between."""
        type_name = "Q4_K"
        if name == ("token_embd" if self.is_tied else "output"):
            type_name = "Q6_K"
        elif name.endswith((".attn_v", ".attn_qkv", ".ffn_down")):
            layer, eighth = int(name.split(".")[1]), self.n_layer // 8
            if layer < eighth or layer >= 7 * self.n_layer // 8 or (layer - eighth) % 3 == 2:
                type_name = "Q6_K"
        RandomTensors.matrix(self, name, n_in, n_out, **{"type_name": type_name, **options})


def read_vocab(path: Path = VOCAB_FILE) -> Vocab:
    """The byte-level vocabulary of a GGUF file."""
    contents = {key: field.contents() for key, field in GGUFReader(path).fields.items()}
    tokens, types, merges = (contents[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type", "merges"))
    return Vocab(
        model="gpt2",
        pre="qwen2",
        tokens=tuple(tokens),
        types=tuple(map(TokenType, types)),
        merges=tuple(merges),
        scores=(0.0,) * len(tokens),
        bos=tokens.index(BOS),
        eos=tokens.index(IM_END),
    )


def write_timing_model(path: Path, name: str, vocab: Vocab, decision: str | None = None) -> None:
    """Write a model with these tokens, and unused ones up to its number of tokens; decision: of this kind."""
    n_layer, n_embd, n_ff, heads, is_tied = (QWEN3 | QWEN35)[name]
    arch, n_vocab = ("qwen3", 151_936) if name in QWEN3 else ("qwen35", 248_320)
    shape = Shape(n_layer=n_layer, n_embd=n_embd, n_ff=n_ff, n_vocab=n_vocab, heads=heads)
    net = DeltaNet(n_state=128, n_k_heads=16, n_v_heads=16 if n_embd == 1024 else 32, interval=4, n_rot=64)
    build = partial(decoder, qk_norm=True) if name in QWEN3 else partial(qwen35, net=net)
    writer = GGUFWriter(path, arch)
    writer.add_name(f"timing-{name}")
    writer.add_file_type(LlamaFileType.MOSTLY_Q4_K_M)
    vocab.with_control(["<|box_end|>"] if decision == "kev" else []).padded(n_vocab).write(writer, add_bos=False)
    tensors = _TimingTensors(writer, np.random.default_rng(0), "Q4_K", n_layer, is_tied)
    if decision:
        tensors.key("decision.type", decision)
        default = {"name": "default", "template": "{{ messages }}"}
        writer.add_chat_template([{"name": "systemone", "template": TEMPLATES[decision]}, default])
    if decision == "kev":
        tensors.pointer(_N_POINTER, n_embd)
    shape_keys(tensors, shape)
    for key, value in {"context_length": 4096, "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e6}.items():
        tensors.key(key, value)
    tensors.matrix("token_embd", n_embd, n_vocab, gain=LOGIT_SPREAD)
    if not is_tied:
        tensors.matrix("output", n_embd, n_vocab, gain=LOGIT_SPREAD)
    build(tensors, shape)
    finish(writer)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4) or sys.argv[1] not in QWEN3 | QWEN35 or not {*sys.argv[3:]} <= {*TEMPLATES}:
        sys.exit(f"usage: python {sys.argv[0]} {'|'.join(QWEN3 | QWEN35)} FILE [{'|'.join(TEMPLATES)}]")
    write_timing_model(Path(sys.argv[2]), sys.argv[1], read_vocab(), *sys.argv[3:])
