"""A model on one of several GPUs, and divided among them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import MakeModel, OpenContext
from nodes import random_decodes

from qcls_gguf import Classifier, load_config
from qcls_gguf.model.placement import Placement, gpus
from qcls_gguf.native import NativeModel, set_log

pytestmark = pytest.mark.skipif(len(gpus()) < 2, reason="needs two GPUs")
SIZES = {"n_ctx": 1024, "n_batch": 128, "n_outputs_max": 128, "n_seq_max": 12}


def logged_buffers(path: Path, *, one_gpu: bool) -> set[str]:
    """On which GPUs llama.cpp says that weights of a model are, as it loads it."""
    lines: list[str] = []
    set_log(lambda _level, text: lines.append(text))
    try:
        NativeModel(path, n_gpu_layers=-1, one_gpu=one_gpu).close()
    finally:
        set_log(None)
    return {word for line in lines if "model buffer size" in line for word in line.split() if word.startswith("CUDA")}


def test_one_gpu_has_all_layers_or_all_gpus_have_some(make_model: MakeModel) -> None:
    path = make_model("qwen3", n_layer=8)
    assert {name for name in logged_buffers(path, one_gpu=True) if "Host" not in name} == {"CUDA0"}
    assert {"CUDA0", "CUDA1"} <= logged_buffers(path, one_gpu=False)


@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_a_divided_model_computes_the_same(name: str, make_model: MakeModel, open_context: OpenContext) -> None:
    path = make_model(name, weight_type="Q8_0")
    with NativeModel(path, n_gpu_layers=-1) as divided, NativeModel(path, n_gpu_layers=-1, one_gpu=True) as whole:
        both = [open_context(divided, **SIZES), open_context(whole, **SIZES)]
        for found, wanted in random_decodes(np.random.default_rng(4), whole, both, 30, 24):
            np.testing.assert_array_equal(found, wanted)
        for context in both:
            context.close()


def test_a_small_model_is_on_the_first_gpu() -> None:
    with Classifier.from_config(load_config("fashion-8")) as classifier:
        assert classifier.engine.model.placement == Placement(classifier.model.n_gpu_layers, 1)
