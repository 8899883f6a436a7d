"""Attention that reads only the cells that a token may see, in whole models on a CUDA device (patch 8)."""

from typing import Any

import numpy as np
import pytest
from cases import cases
from conftest import MakeModel, OpenClassifier, OpenContext, RunPython, WriteConfig, sees_cuda_gpu
from oracle import (
    BRANCHING,
    COLOR,
    Float32Array,
    Node,
    PromptSpec,
    check_cells_of_others,
    decode,
    decode_sequence,
    random_decodes,
    random_tokens,
)

pytestmark = pytest.mark.skipif(not sees_cuda_gpu(), reason="needs a CUDA device")
LARGEST_DIFFERENCE = 0.05
"""From the CPU's, root mean square of a row of unit size. Products with Q8_0 weights round activations: where attention
alone was another, rows differed by up to 0.022 on a CPU; one other cell among 40 made 0.13 and more.
"""
ON_CPU = {"flash_attn": False, "visible_cells": False}
"""llama.cpp's attention with a mask, on a CPU."""
HEADS = [(32, 4, 2), (64, 4, 4), (64, 8, 1), (80, 4, 2), (96, 6, 3), (128, 4, 2), (128, 8, 2), (128, 7, 1)]
"""Head size, query heads, key and value heads."""


def assert_alike(found: Float32Array, wanted: Float32Array) -> None:
    assert np.sqrt(np.mean((found - wanted) ** 2, axis=1)).max() < LARGEST_DIFFERENCE


@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_random_decodes(heads: tuple[int, int, int], make_model: MakeModel, open_context: OpenContext) -> None:
    path = make_model("qwen3", heads=heads, weight_type="Q8_0")
    both = [open_context(path, n_gpu_layers=-1, **BRANCHING), open_context(path, **BRANCHING, **ON_CPU)]
    assert both[0].why_no_visible_cells is None
    for found, wanted in random_decodes(np.random.default_rng(4), both, 30, 24):
        assert_alike(found, wanted)


@cases(
    ("qwen3", {"heads": (40, 5, 5)}, {}, "the GPU has no such attention for heads of this size"),
    ("qwen3", {"heads": (256, 2, 1)}, {}, "the GPU has no such attention for heads of this size"),
    ("qwen3", {}, {"kv_type": "f32"}, "the cache is not F16, which it must be on a GPU"),
    ("qwen3", {}, {"kv_type": "q8_0"}, "the cache is neither F16 nor F32"),
    ("qwen3", {}, {"flash_attn": True}, "another kind of attention was asked for"),
    ("qwen3", {}, {"flash_attn": False}, "another kind of attention was asked for"),
    ("gemma3", {}, {}, "the model has sliding windows, which such attention on a GPU does not know"),
    ("falcon-h1", {}, {}, "the model has recurrent layers, and is on a GPU"),
    ids=str,
)
def test_what_cannot_have_it_says_why(
    name: str,
    model_options: dict[str, Any],
    options: dict[str, Any],
    why: str,
    make_model: MakeModel,
    open_context: OpenContext,
) -> None:
    context = open_context(make_model(name, **model_options), n_gpu_layers=-1, **options)
    assert context.why_no_visible_cells == why


def test_some_layers_on_the_cpu(open_context: OpenContext) -> None:
    """The head is the first to go to the GPU, then one of the two layers."""
    context = open_context("qwen3", n_gpu_layers=2)
    assert context.why_no_visible_cells == "the model has layers on a GPU and on the CPU"


def test_other_cells_and_where_cells_lie_do_not_matter(make_model: MakeModel, open_context: OpenContext) -> None:
    """To a bit: with thousands of others' cells in the cache, and with cells scattered among theirs."""
    random, path = np.random.default_rng(2), make_model(weight_type="Q8_0")
    sizes = {"n_ctx": 9216, "n_batch": 512, "n_outputs_max": 512, "n_seq_max": 48}
    context, other = (open_context(path, n_gpu_layers=-1, **sizes) for _ in range(2))
    tokens = random_tokens(random, context, 153)
    check_cells_of_others(random, context, tokens, decode_sequence(other, tokens), 8192)


def test_a_graph_serves_any_number_of_others_cells(make_model: MakeModel, open_context: OpenContext) -> None:
    random = np.random.default_rng(5)
    context = open_context(make_model(weight_type="Q8_0"), n_gpu_layers=-1, n_ctx=4096, n_seq_max=40)
    context.keep_shapes(1)
    for seq in range(40):
        decode_sequence(context, random_tokens(random, context, 64), seq=seq)
    assert context.counters().n_graphs_reused == 39


def test_a_long_sequence_and_many_branches(make_model: MakeModel, open_context: OpenContext) -> None:
    """Lists that grow a hundredfold from one decode to the next, in parts that are put together."""
    path = make_model("qwen3", heads=(64, 4, 2), weight_type="Q8_0")
    sizes = {"n_ctx": 2304, "n_batch": 1024, "n_outputs_max": 1024, "n_seq_max": 40}
    found = []
    for n_gpu_layers, options in ((-1, {}), (0, ON_CPU)):
        random, context = np.random.default_rng(6), open_context(path, n_gpu_layers=n_gpu_layers, **sizes, **options)
        tokens = random_tokens(random, context, 1024)
        branches = [Node(token, 1024 + i // 32, [i % 32]) for i, token in enumerate(random_tokens(random, context, 64))]
        context.keep_shapes(2)
        rows = [decode_sequence(context, tokens[:3], seq=35), decode_sequence(context, tokens)]
        for seq in range(1, 32):
            context.share(0, seq, 0, 1024)
        rows += [decode(context, branches), decode_sequence(context, tokens[3:40], seq=35, start=3)]
        found.append(np.concatenate(rows))
    assert_alike(found[0], found[1])


def test_a_classifier_has_it_on_a_gpu(make_model: MakeModel, open_classifier: OpenClassifier) -> None:
    prompts = [PromptSpec(name="a", template="the colour of {query} is", labels=("red", "light blue", "light pink"))]
    for options, reads_visible in (({}, True), ({"flash_attn": True}, False)):
        classifier = open_classifier(make_model(weight_type="Q8_0"), prompts, n_gpu_layers="all", **options)
        assert (classifier.engine.context.why_no_visible_cells is None) == reads_visible


WITHOUT_LAYERS = """
import os, sys
if sys.argv[2] == "hidden":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
from qcls_gguf import Classifier
with Classifier.from_config(sys.argv[1]) as classifier:
    result = classifier.classify("red " * 60)
print(result.counts.n_tokens_new > 60, result.model.device, [score.score for score in result.results[0].scores])
"""


@pytest.mark.parametrize("weight_type", ["F32", "Q8_0"])
def test_without_layers_on_a_gpu_answers_are_those_of_a_machine_without_one(
    weight_type: str, make_model: MakeModel, write_config: WriteConfig, run_python: RunPython
) -> None:
    """llama.cpp would copy weights to the GPU for decodes of 32 tokens and more, and round otherwise there."""
    config = write_config(make_model(weight_type=weight_type, n_embd=512, n_ff=1024), [COLOR], n_gpu_layers=0)
    visible, hidden = (run_python(WITHOUT_LAYERS, config, kind) for kind in ("visible", "hidden"))
    assert visible.stdout.startswith("True"), visible.stderr
    assert visible.stdout == hidden.stdout
