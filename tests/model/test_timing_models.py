"""Files for timing: the types of their matrices, and that they can be used."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from conftest import OpenClassifier
from gguf import GGMLQuantizationType, GGUFReader
from oracle import PromptSpec
from random_delta_nets import DeltaNet, qwen35
from random_vocab import build_vocab
from timing_models import MODELS, write_timing_model

Q6_K = GGMLQuantizationType.Q6_K


@pytest.mark.parametrize("name", ["qwen3.5-4b", "qwen3.5-9b", "qwen3-0.6b"])
def test_a_small_one_is_of_the_types_of_q4_k_m_and_labels(
    name: str, tmp_path: Path, open_classifier: OpenClassifier
) -> None:
    model = MODELS[name]
    shape = replace(model.shape, n_layer=8, n_embd=256, n_ff=256, n_vocab=700, heads=(64, 4, 2))
    build = model.build
    if model.arch == "qwen35":
        build = partial(qwen35, net=DeltaNet(n_v_heads=8, interval=4))
    path = tmp_path / "small.gguf"
    write_timing_model(path, name, replace(model, shape=shape, build=build), build_vocab("bpe"))
    types = {tensor.name: tensor.tensor_type for tensor in GGUFReader(path).tensors}
    assert types["token_embd.weight" if model.is_tied else "output.weight"] == Q6_K
    of_down = [types[f"blk.{i}.ffn_down.weight"] for i in range(8)]
    assert [i for i, kind in enumerate(of_down) if kind == Q6_K] == [0, 3, 6, 7]
    assert types["blk.3.attn_v.weight"] == types["blk.7.attn_v.weight"] == Q6_K
    prompt = PromptSpec(name="item", template="item of {query}\nlabel:", labels=("dress", "light blue", "light"))
    classifier = open_classifier(path, [prompt])
    assert classifier.model.quantization == "Q4_K_M"  # without which nothing is predicted of a T4
    assert classifier.classify("red dress").labels
