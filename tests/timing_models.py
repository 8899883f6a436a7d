"""Files with the shapes of published models and random weights, for timing: `python tests/timing_models.py NAME FILE`.

They have the tensors, sizes, vocabulary size and mix of types (llama-quantize's Q4_K_M) of the real files, so that
llama.cpp takes the same time for them; what they answer means nothing. Rows repeat after some thousands of others, so
that a file of 6 GB is written as fast as the disk takes it.

The tokens are those of the vocabulary that comes with llama.cpp (Qwen2's), with unused ones up to the model's number:
the head has as many rows as the real one.

With a third argument, such as `kev`, the file is a decision model of that kind, with a template of the tests.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, cast

import numpy as np
import numpy.typing as npt
from chat_templates import TEMPLATES
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, LlamaFileType, TokenType
from gguf.constants import GGML_QUANT_SIZES
from gguf_parts import finish
from random_delta_nets import DeltaNet, qwen35
from random_layers import Shape, decoder
from random_tensors import RandomTensors, random_blocks
from random_vocab import BOS, IM_END, Vocab

VOCAB_FILE = Path(__file__).parents[1] / "vendor/llama.cpp/models/ggml-vocab-qwen2.gguf"
LOGIT_SPREAD = 2.5
_N_BLOCKS = 29_989
"""Random blocks of each kind of matrix; prime, so that no two of this many rows begin at the same block."""
_N_POINTER = 256  # of the published models of kind kev


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingModel:
    """The shape of a published model. A model is tied whose head is the token embedding."""

    arch: str
    build: Callable[[RandomTensors, Shape], None]
    shape: Shape
    is_tied: bool


def _qwen3(n_layer: int, n_embd: int, n_ff: int, heads: tuple[int, int, int], *, is_tied: bool) -> TimingModel:
    shape = Shape(n_layer=n_layer, n_embd=n_embd, n_ff=n_ff, n_vocab=151_936, heads=heads)
    return TimingModel(arch="qwen3", build=partial(decoder, qk_norm=True), shape=shape, is_tied=is_tied)


def _qwen35(
    n_layer: int, n_embd: int, n_ff: int, heads: tuple[int, int, int], n_v_heads: int, *, is_tied: bool
) -> TimingModel:
    net = DeltaNet(n_state=128, n_k_heads=16, n_v_heads=n_v_heads, interval=4, n_rot=64)
    shape = Shape(n_layer=n_layer, n_embd=n_embd, n_ff=n_ff, n_vocab=248_320, heads=heads)
    return TimingModel(arch="qwen35", build=partial(qwen35, net=net), shape=shape, is_tied=is_tied)


MODELS = {
    "qwen3-0.6b": _qwen3(28, 1024, 3072, (128, 16, 8), is_tied=True),
    "qwen3-4b": _qwen3(36, 2560, 9728, (128, 32, 8), is_tied=True),
    "qwen3-8b": _qwen3(36, 4096, 12288, (128, 32, 8), is_tied=False),
    "qwen3.5-0.8b": _qwen35(24, 1024, 3584, (256, 8, 2), 16, is_tied=True),
    "qwen3.5-4b": _qwen35(32, 2560, 9216, (256, 16, 4), 32, is_tied=True),
    "qwen3.5-9b": _qwen35(32, 4096, 12288, (256, 16, 4), 32, is_tied=False),
}


@dataclass(frozen=True, slots=True)
class _Repeated:
    """Blocks that are written again and again, in the shape of a matrix; what a GGUFWriter asks of an array."""

    blocks: bytes
    shape: tuple[int, int]
    """rows, and bytes of a row"""
    dtype: ClassVar[np.dtype[np.uint8]] = np.dtype(np.uint8)

    @property
    def nbytes(self) -> int:
        return self.shape[0] * self.shape[1]

    def tofile(self, file: BinaryIO) -> None:
        """Write all rows."""
        n_whole, n_rest = divmod(self.nbytes, len(self.blocks))
        for _ in range(n_whole):
            file.write(self.blocks)
        file.write(self.blocks[:n_rest])


@dataclass(frozen=True, slots=True)
class _TimingTensors(RandomTensors):
    """Random tensors whose matrices have the types of Q4_K_M and repeat their blocks; all others as in small models."""

    n_layer: int
    is_tied: bool
    blocks: dict[tuple[GGMLQuantizationType, float], bytes] = field(default_factory=dict)

    def matrix(self, name: str, n_in: int, n_out: int, *, gain: float = 1.0, **options: Any) -> None:
        """As RandomTensors has it."""
        if any(options.values()):
            RandomTensors.matrix(self, name, n_in, n_out, gain=gain, **options)
            return
        kind = self._kind(name)
        n_values, n_bytes = GGML_QUANT_SIZES[kind]
        std = gain / n_in**0.5
        if (kind, std) not in self.blocks:
            made = random_blocks(self.rng, kind, (_N_BLOCKS, n_values), std)
            self.blocks[kind, std] = made.tobytes()
        rows = _Repeated(self.blocks[kind, std], (n_out, n_in // n_values * n_bytes))
        self.writer.add_tensor(f"{name}.weight", cast("npt.NDArray[np.uint8]", rows), raw_dtype=kind)

    def _kind(self, name: str) -> GGMLQuantizationType:
        """llama-quantize's choice (src/llama-quant.cpp): more bits for the head, for values and for the way back from
        the network, of these in the first and last eighth of the layers and in every third one between."""
        more, usual = GGMLQuantizationType.Q6_K, GGMLQuantizationType.Q4_K
        if name == ("token_embd" if self.is_tied else "output"):
            return more
        if not name.endswith((".attn_v", ".attn_qkv", ".ffn_down")):
            return usual
        layer, eighth = int(name.split(".")[1]), self.n_layer // 8
        is_chosen = layer < eighth or layer >= 7 * self.n_layer // 8 or (layer - eighth) % 3 == 2
        return more if is_chosen else usual


def read_vocab(path: Path = VOCAB_FILE) -> Vocab:
    """The byte-level vocabulary of a GGUF file."""
    fields = GGUFReader(path).fields

    def texts(key: str) -> tuple[str, ...]:
        found = fields[f"tokenizer.ggml.{key}"]
        return tuple(bytes(found.parts[index]).decode() for index in found.data)

    tokens = texts("tokens")
    types = fields["tokenizer.ggml.token_type"]
    return Vocab(
        model="gpt2",
        pre="qwen2",
        tokens=tokens,
        types=tuple(TokenType(int(types.parts[index][0])) for index in types.data),
        merges=texts("merges"),
        scores=(0.0,) * len(tokens),
        bos=tokens.index(BOS),
        eos=tokens.index(IM_END),
    )


def write_timing_model(path: Path, name: str, model: TimingModel, vocab: Vocab, decision: str | None = None) -> None:
    """Write a model with these tokens, and unused ones up to its number of tokens; decision: of this kind."""
    shape = model.shape
    writer = GGUFWriter(path, model.arch)
    writer.add_name(f"timing-{name}")
    writer.add_file_type(LlamaFileType.MOSTLY_Q4_K_M)
    vocab.with_control(["<|box_end|>"] if decision == "kev" else []).padded(shape.n_vocab).write(writer, add_bos=False)
    tensors = _TimingTensors(writer, np.random.default_rng(0), "Q4_K", shape.n_layer, model.is_tied)
    if decision:
        writer.add_string(f"{model.arch}.decision.type", decision)
        default = {"name": "default", "template": "{{ messages }}"}
        writer.add_chat_template([{"name": "systemone", "template": TEMPLATES[decision]}, default])
    if decision == "kev":
        tensors.key("embedding_length_out", 2 * _N_POINTER)
        tensors.matrix("cls.output", shape.n_embd, 2 * _N_POINTER)
        tensors.vector("cls.output.bias", 2 * _N_POINTER)
    tensors.key("context_length", 4096)
    tensors.key("block_count", shape.n_layer)
    tensors.key("embedding_length", shape.n_embd)
    tensors.key("feed_forward_length", shape.n_ff)
    tensors.key("attention.layer_norm_rms_epsilon", 1e-6)
    tensors.key("rope.freq_base", 1e6)
    tensors.matrix("token_embd", shape.n_embd, shape.n_vocab, gain=LOGIT_SPREAD)
    if not model.is_tied:
        tensors.matrix("output", shape.n_embd, shape.n_vocab, gain=LOGIT_SPREAD)
    model.build(tensors, shape)
    finish(writer)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4) or sys.argv[1] not in MODELS or not {*sys.argv[3:]} <= {*TEMPLATES}:
        sys.exit(f"usage: python {sys.argv[0]} {'|'.join(MODELS)} FILE [{'|'.join(TEMPLATES)}]")
    write_timing_model(Path(sys.argv[2]), sys.argv[1], MODELS[sys.argv[1]], read_vocab(), *sys.argv[3:])
