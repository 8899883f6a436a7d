"""Attention that reads only the cells that a token may see, in whole models (patch 8)."""

from typing import Any

import numpy as np
import pytest
from cases import cases
from conftest import ModelSpec, OpenClassifier, OpenContext
from oracle import BRANCHING, PromptSpec, check_cells_of_others, decode, decode_sequence, random_decodes, random_tokens
from random_models import ARCHS

from qcls_gguf.errors import DecodeError
from qcls_gguf.native import NativeModel

WHY_NOT = {
    "refact": "the model has ALiBi",
    "gpt-oss": "the model has attention sinks",
    "gemma2": "the model caps attention scores",
    "grok": "the model caps attention scores",
    "kimi-linear": "the model has multi-head latent attention",
    "bailingmoe3": "the model has multi-head latent attention",
}
USABLE = [name for name, spec in ARCHS.items() if spec.memory in ("full", "window") and spec.tail != "other"]
HAVE_IT = [name for name in USABLE if name not in WHY_NOT]
LARGEST_DIFFERENCE = {"f32": 3e-3, "f16": 0.01}
"""From llama.cpp's own attention, of rows of unit size. Measured: 3.8e-6, or 1e-4 to 1.2e-3 where a GELU follows, which
ggml looks up in a table of F16; with an F16 cache 0.004, since llama.cpp rounds queries and weights to F16, too.
"""
ANOTHER = "another kind of attention was asked for"
OTHER_CACHE = "the cache is neither F16 nor F32"
PLAIN = {"flash_attn": False}
HEADS = [(64, 4, 4), (64, 8, 1), (80, 4, 2), (96, 6, 3), (128, 4, 2), (256, 2, 1), (40, 5, 5)]
"""Head size, query heads, key and value heads."""
WITH_HEADS: list[ModelSpec] = [{"name": name, "heads": heads} for name in ("llama", "qwen3") for heads in HEADS]


@pytest.mark.parametrize("kv_type", ["f32", "f16"])
@pytest.mark.parametrize("model", [*HAVE_IT, *WITH_HEADS], ids=str)
def test_every_model_that_can_have_it_and_any_heads(model: ModelSpec, kv_type: str, open_context: OpenContext) -> None:
    """A sequence of 40 tokens, and a tree with tokens of three, two and one sequence after it."""
    ours, stock = (open_context(model, **PLAIN, kv_type=kv_type, visible_cells=on) for on in (True, False))
    assert ours.why_no_visible_cells is None
    assert stock.why_no_visible_cells == ANOTHER
    tokens = random_tokens(np.random.default_rng(0), ours, 48)
    paths = [(40, [1, 3, 5]), (41, [1, 3, 5]), (42, [3, 5]), (42, [1]), (43, [5]), (43, [3]), (43, [1]), (44, [1])]
    found = []
    for context in (ours, stock):
        first = decode_sequence(context, tokens[:40], seq=1)
        for seq in (3, 5):
            context.share(1, seq, 0, 40)
        nodes = [(token, pos, seqs) for token, (pos, seqs) in zip(tokens[40:], paths, strict=True)]
        found.append(np.concatenate([first, decode(context, nodes)]))
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=LARGEST_DIFFERENCE[kv_type])


@pytest.mark.parametrize("name", [name for name, spec in ARCHS.items() if spec.memory == "hybrid" and name != "plamo2"])
def test_attention_layers_of_hybrids(name: str, open_context: OpenContext) -> None:
    """A sequence beside another one, which it does not see."""
    ours, stock = (open_context(name, **PLAIN, kv_type="f32", visible_cells=on) for on in (True, False))
    assert ours.why_no_visible_cells == WHY_NOT.get(name)
    tokens = random_tokens(np.random.default_rng(2), ours, 40)
    alone = decode_sequence(ours, tokens, seq=1)
    for context in (ours, stock):
        decode_sequence(context, tokens[::-1], seq=3)
    beside = decode_sequence(ours, tokens, seq=2)
    np.testing.assert_allclose(beside, decode_sequence(stock, tokens, seq=2), rtol=0, atol=LARGEST_DIFFERENCE["f32"])
    if name not in WHY_NOT:
        np.testing.assert_array_equal(beside, alone)


def assert_falls_back(model: str | NativeModel, open_context: OpenContext, why: str, **options: Any) -> None:
    """The rows are those of llama.cpp's own attention to a bit, for they come from it."""
    ours, stock = open_context(model, **options), open_context(model, **{**options, "visible_cells": False})
    tokens = random_tokens(np.random.default_rng(1), ours, 30)
    assert ours.why_no_visible_cells == why
    np.testing.assert_array_equal(decode_sequence(ours, tokens), decode_sequence(stock, tokens))


@pytest.mark.parametrize(("name", "why"), WHY_NOT.items())
def test_a_model_that_cannot_have_it_falls_back(name: str, why: str, open_context: OpenContext) -> None:
    assert_falls_back(name, open_context, why, **PLAIN)


@cases(
    ({"flash_attn": False, "kv_type": "bf16"}, OTHER_CACHE),
    ({"flash_attn": True}, ANOTHER),
    ({"flash_attn": None}, ANOTHER),
    ({"flash_attn": None, "kv_type": "q8_0"}, OTHER_CACHE),
    ids=str,
)
def test_a_context_that_is_asked_for_something_else(
    options: dict[str, Any], why: str, model: NativeModel, open_context: OpenContext
) -> None:
    assert_falls_back(model, open_context, why, **options)


def test_switched_off(model: NativeModel, open_context: OpenContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QCLS_VISIBLE_CELLS", "0")
    assert_falls_back(model, open_context, ANOTHER, **PLAIN)
    monkeypatch.setenv("QCLS_VISIBLE_CELLS", "1")
    assert open_context(model, **PLAIN).why_no_visible_cells is None


@cases(("F32", 16384), ("F16", 512), ("Q8_0", 512), ("Q4_K", 512), ("Q6_K", 512))
def test_a_row_depends_on_no_other_cells_or_threads(
    weight_type: str, n_foreign: int, open_context: OpenContext
) -> None:
    """To a bit: with thousands of others' cells in the cache, with cells scattered among theirs, by three threads."""
    sizes = {"n_ctx": 17408, "n_batch": 512, "n_outputs_max": 512, "n_seq_max": 48, **PLAIN}
    random, model = np.random.default_rng(2), {"weight_type": weight_type}
    context = open_context(model, **sizes)
    tokens = random_tokens(random, context, 53)
    wanted = decode_sequence(open_context(model, **sizes), tokens)
    check_cells_of_others(random, context, tokens, wanted, n_foreign)
    np.testing.assert_array_equal(decode_sequence(open_context(model, n_threads=3, **sizes), tokens), wanted)


@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_random_decodes(name: str, open_context: OpenContext) -> None:
    """Alike in a context with llama.cpp's own attention."""
    both = [open_context(name, visible_cells=v, kv_type="f32", **BRANCHING, **PLAIN) for v in (True, False)]
    for found, wanted in random_decodes(np.random.default_rng(4), both, 40, 24):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=LARGEST_DIFFERENCE["f32"])


def test_a_graph_serves_any_number_of_cells(model: NativeModel, open_context: OpenContext) -> None:
    """llama.cpp's graph has the used cells, in steps of 256, as a shape, and as large a mask and scores."""
    random = np.random.default_rng(5)
    n_reused, n_bytes = [], []
    for visible in (True, False):
        context = open_context(model, n_ctx=4096, visible_cells=visible, **PLAIN)
        context.keep_shapes(1)
        for start in range(0, 2048, 64):
            decode_sequence(context, random_tokens(random, context, 64), start=start)
        n_reused.append(context.counters().n_graphs_reused)
        n_bytes.append(context.counters().shapes_bytes)
    assert n_reused == [31, 24]
    scores = 64 * 2048 * 4 * 4  # of 4 heads, float32
    assert n_bytes[0] + scores < n_bytes[1]


def test_saved_cells_are_those_of_a_context_like_it(model: NativeModel, open_context: OpenContext) -> None:
    ours, again, stock = (open_context(model, visible_cells=v, **PLAIN) for v in (True, True, False))
    tokens = random_tokens(np.random.default_rng(6), ours, 40)
    wanted = decode_sequence(ours, tokens)
    ours.trim(np.zeros(1, np.int32), np.zeros(1, np.int32))
    decode_sequence(ours, tokens[:30])
    again.load_state(ours.save_state())
    np.testing.assert_array_equal(decode_sequence(ours, tokens[30:], start=30), wanted[30:])
    np.testing.assert_array_equal(decode_sequence(again, tokens[30:], start=30), wanted[30:])
    with pytest.raises(DecodeError, match="incompatible V transposition"):
        stock.load_state(ours.save_state())


def test_a_classifier_has_it_on_a_cpu(open_classifier: OpenClassifier) -> None:
    prompts = [PromptSpec(name="a", template="the colour of {query} is", labels=("red", "light blue", "light pink"))]
    for options, reads_visible in (({}, True), ({"flash_attn": False}, True), ({"flash_attn": True}, False)):
        classifier = open_classifier("qwen3", prompts, n_gpu_layers=0, **options)
        assert (classifier.engine.context.why_no_visible_cells is None) == reads_visible
