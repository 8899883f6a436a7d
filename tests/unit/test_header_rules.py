"""Headers that no model has are refused with the value and what is allowed, and those of real models are not."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from gguf_parts import File, Tensor, put_together, take_apart
from random_models import ARCHS, write_model

from qcls_gguf.errors import ModelError
from qcls_gguf.model.files import ModelFile

ROOT = Path(__file__).parents[2]
U32, I32, F32, TEXT, ARRAY = 4, 5, 6, 8, 9


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> File:
    return take_apart(write_model(tmp_path_factory.mktemp("gguf") / "sound.gguf", "qwen3", n_layer=1))


def refusal(file: File, path: Path) -> str:
    """What is said of a file; nothing where it is taken."""
    path.write_bytes(put_together(file))
    try:
        ModelFile.read(path)
    except ModelError as e:
        return str(e)
    return ""


@pytest.mark.parametrize("name", ARCHS)
def test_headers_of_all_architectures_are_taken(name: str, tmp_path: Path) -> None:
    ModelFile.read(write_model(tmp_path / "model.gguf", name, n_layer=2))


@pytest.mark.parametrize(
    ("key", "kind", "value", "said"),
    [
        ("tokenizer.ggml.model", TEXT, b"none", "tokenizer.ggml.model is 'none': without a tokenizer"),
        ("tokenizer.ggml.tokens", ARRAY, (U32, [1, 2]), "tokenizer.ggml.tokens is no list of texts"),
        ("tokenizer.ggml.bos_token_id", U32, 1 << 20, "bos_token_id is 1048576, and the vocabulary has"),
        ("tokenizer.ggml.eos_token_id", F32, 1.0, "eos_token_id is 1.0, and the vocabulary has"),
        ("qwen3.attention.layer_norm_rms_epsilon", F32, -1e-5, "layer_norm_rms_epsilon is -9.99"),
        ("qwen3.attention.layer_norm_rms_epsilon", F32, math.nan, "layer_norm_rms_epsilon is nan"),
        ("qwen3.rope.freq_base", F32, -math.inf, "rope.freq_base is -inf"),
        ("qwen3.rope.dimension_count", U32, 63, "rope.dimension_count is 63, not an even number"),
        ("qwen3.attention.key_length", I32, -64, "attention.key_length is -64"),
        ("qwen3.context_length", U32, 1 << 31, "context_length is 2147483648"),
        ("qwen3.embedding_length_out", U32, 128, "embedding_length_out is 128, and the head takes"),
    ],
)
def test_what_no_key_says(key: str, kind: int, value: object, said: str, sound: File, tmp_path: Path) -> None:
    file = sound.copy()
    index = file.key(key)
    if index is None:
        file.keys.append((key.encode(), kind, value))
    else:
        file.keys[index] = (key.encode(), kind, value)
    found = refusal(file, tmp_path / "odd.gguf")
    assert said in found
    assert found.endswith("fetch the file again, or choose another")


def test_a_rope_that_turns_more_than_a_head_has(sound: File, tmp_path: Path) -> None:
    file = sound.copy()
    file.keys += [(b"qwen3.rope.dimension_count", U32, 96), (b"qwen3.attention.key_length", U32, 64)]
    found = refusal(file, tmp_path / "odd.gguf")
    assert "rope.dimension_count is 96, not an even number up to attention.key_length (64)" in found


@pytest.mark.parametrize(
    ("name", "kind", "block", "said"),
    [
        ("blk.0.attn_q.weight", 24, 1, "has the type I8, which weights cannot have"),
        ("blk.0.ffn_up.weight", 28, 8, "has the type F64"),
        ("token_embd.weight", 27, 8, "has the type I64"),
        ("output_norm.weight", 1, 2, "has the ggml type 1; norms, biases and scales are F32"),
        ("blk.0.attn_q_norm.weight", 30, 2, "has the ggml type 30; norms"),
    ],
)
def test_types_that_kernels_do_not_know(
    name: str, kind: int, block: int, said: str, sound: File, tmp_path: Path
) -> None:
    file = sound.copy()
    (tensor,) = [tensor for tensor in file.tensors if tensor.name == name.encode()]
    n_values = len(tensor.data) // 4
    tensor.kind, tensor.data = kind, bytes(n_values * block)
    assert f"tensor '{name}' {said}" in refusal(file, tmp_path / "odd.gguf")


def test_a_tensor_of_nothing(sound: File, tmp_path: Path) -> None:
    file = sound.copy()
    file.tensors.append(Tensor(name=b"blk.0.x.weight", shape=[32, 0], kind=0, data=b""))
    assert "has the shape (32, 0), which holds nothing" in refusal(file, tmp_path / "odd.gguf")


def test_a_token_that_is_none(sound: File, tmp_path: Path) -> None:
    """Converters write -1 into a key without a sign."""
    file = sound.copy()
    file.keys.append((b"tokenizer.ggml.eot_token_id", U32, (1 << 32) - 1))
    assert refusal(file, tmp_path / "model.gguf") == ""
