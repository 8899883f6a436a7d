"""Weights in lane order on a CUDA device: the same products as in the file's order, by whichever kernels.

Attention that reads only the cells that a token may see, in whole models on a CUDA device (patch 8).

The direct matrix kernels against stock's on a CUDA device: right within rounding, at work where they should be.
"""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from cases import cases
from conftest import MakeModel, ModelSpec, OpenClassifier, OpenContext, RunPython, WriteConfig, sees_cuda_gpu
from kernels.variants import LANES, capability, compare_variants, largest_difference, runs_code_for_75, variants
from kernels.variants import hidden_states as rows
from oracle import (
    BRANCHING,
    COLOR,
    ITEM,
    PromptSpec,
    check_cells_of_others,
    decode,
    decode_sequence,
    random_decodes,
    random_tokens,
)

from qcls_gguf import Classifier, OpenModels, load_config
from qcls_gguf.config.scoring import Scoring
from qcls_gguf.engine.open import open_model
from qcls_gguf.native import NativeModel
from qcls_gguf.native.device import LANE_ORDER, OWN_TYPES

pytestmark = pytest.mark.skipif(not sees_cuda_gpu(), reason="needs a CUDA device")
Pair = Callable[..., list[Classifier]]
SIZES = (1, 2, 3, 8, 9, 16, 17, 26, 33, 40, 57, 64, 65, 72, 73, 81, 104, 112, 113, 129, 161, 225, 300, 512)
LARGEST_OF_A_LAYER = 0.02
"""of rows of unit size. Measured: 0.004, with one token, which other kernels take in the file's order"""
MANY = 600  # columns: of a matrix in the file's order llama.cpp's kernels take them
TOO_MANY = 2100  # of one in lane order, too: they read a copy
Shape = dict[str, Any]
SHAPES: list[Shape] = [
    {"n_embd": 512, "n_ff": 1024, "tied": False},
    {"n_embd": 1024, "n_ff": 3072, "tied": True, "heads": (128, 8, 2)},
    *({"name": name, "n_embd": 512, "n_ff": 1024} for name in ("llama", "qwen2")),
]


def of_types(shape: Shape, weight_type: str, head_type: str | None = None) -> Shape:
    """The options of a model; its head is of the weights' type if no other is given."""
    return {**shape, "weight_type": weight_type, "head_type": head_type or weight_type}


@pytest.fixture
def pair(open_classifier: OpenClassifier, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """Opens a model with its matrices in the file's order and in lane order."""

    def opened(model: Shape, **runtime: Any) -> list[Classifier]:
        both = []
        for order in ("0", "1"):
            monkeypatch.setenv(LANE_ORDER, order)
            settings = {"n_gpu_layers": "all", "n_batch": 640, "state_cache": False, **runtime}
            both.append(open_classifier(model, [ITEM], **settings))
        assert both[0].engine.model.facts.n_lane_ordered == 0
        return both

    return opened


@pytest.mark.parametrize("weight_type", ["Q6_K", "Q8_0"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_hidden_states_differ_by_rounding_alone(shape: Shape, weight_type: str, pair: Pair) -> None:
    plain, lanes = pair(of_types(shape, weight_type), n_batch=2176)
    facts = lanes.engine.model.facts
    assert facts.n_lane_ordered == (7 * facts.n_layer if runs_code_for_75() else 0)
    rounding = max(largest_difference(rows(plain, n, 8), rows(plain, n)) for n in SIZES)
    for n in (*SIZES, MANY, 2048, TOO_MANY):
        assert largest_difference(rows(lanes, n), rows(plain, n)) < 3 * rounding, n


@pytest.mark.parametrize("weight_type", ["Q4_K", "Q6_K", "Q8_0"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_batch_invariant_contexts_have_the_same_bits(shape: Shape, weight_type: str, pair: Pair) -> None:
    """There sums are added in an order that the matrix alone decides, and lane order does not change it."""
    plain, lanes = pair(of_types(shape, weight_type, "Q6_K"), batch_invariant=True)
    for n in (*SIZES, MANY):
        np.testing.assert_array_equal(rows(lanes, n), rows(plain, n), err_msg=f"{n} tokens")


@pytest.mark.parametrize("weight_type", ["Q6_K", "Q8_0"])
def test_llama_cpp_s_kernels_read_a_copy_in_the_file_s_order(
    weight_type: str, write_config: WriteConfig, open_classifier: OpenClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = of_types(SHAPES[0], weight_type)
    config = load_config(write_config(model, [ITEM], n_gpu_layers="all", n_batch=640, state_cache=False))
    with OpenModels() as models, monkeypatch.context() as patch:
        patch.setenv("QCLS_LANE_ORDER", "1")
        open_model(config, models)
        patch.setenv("QCLS_MMQ_DIRECT", "0")  # for contexts: the model is loaded
        with Classifier.from_config(config, model=models) as lanes:
            patch.setenv("QCLS_LANE_ORDER", "0")
            plain = open_classifier(model, [ITEM], n_gpu_layers="all", n_batch=640, state_cache=False)
            for n in (2, 5, 8, 9, 33, 130, MANY):
                np.testing.assert_array_equal(rows(lanes, n), rows(plain, n), err_msg=f"{n} tokens")


def test_the_device_decides_where_nobody_else_does(make_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_model(**of_types(SHAPES[0], "Q8_0"))

    def share(order: str | None) -> float:
        monkeypatch.setenv(LANE_ORDER, order) if order else monkeypatch.delenv(LANE_ORDER, raising=False)
        with NativeModel(path, n_gpu_layers=-1) as model:
            return model.facts.n_lane_ordered / (7 * model.facts.n_layer)

    assert share(None) == (runs_code_for_75() and capability() == 75)
    assert (share("0"), share("1")) == (0, runs_code_for_75())
    monkeypatch.setenv("QCLS_MMQ_DIRECT", "0")
    assert share("1") == 0


def test_layers_on_the_cpu_stay_in_the_file_s_order(pair: Pair) -> None:
    plain, lanes = pair(of_types(SHAPES[0], "Q8_0"), n_gpu_layers=2)  # the head and the last layer
    n_layer = lanes.engine.model.facts.n_layer
    assert lanes.engine.model.facts.n_lane_ordered < 7 * n_layer
    assert (lanes.engine.model.facts.n_lane_ordered > 0) == runs_code_for_75()
    for n in (1, 2, 9, 33, 130):
        assert largest_difference(rows(lanes, n), rows(plain, n)) < LARGEST_OF_A_LAYER, n


# Batch-invariant contexts on a CUDA device: rows and answers have the same bits alone and in company.


LABELS = ("dress", "jump", "jumper", "tank top", "none")
TEXTS = {"short": "what is", "long": "one of many words, " * 34 + "what is"}  # the second: more than 256 cells
RUNTIME: dict[str, Any] = {"n_gpu_layers": "all", "batch_invariant": True, "max_query_tokens": 32}
QUERIES = ["a", "red dress", "a light blue tank top for boys, made of cotton", "jump", "no item at all"]
WIDE_SHAPES = [*SHAPES[:2], {**SHAPES[2], "n_ff": 4096}, {**SHAPES[3], "n_ff": 8192}]


def specs(scoring: Scoring = "tree") -> list[PromptSpec]:
    return [
        PromptSpec(name=name, template=f"<|im_start|>{text} {{query}}<|im_end|>label:", labels=LABELS, scoring=scoring)
        for name, text in TEXTS.items()
    ]


@pytest.mark.parametrize("weight_type", ["Q4_K", "Q6_K", "Q8_0"])
@pytest.mark.parametrize("shape", WIDE_SHAPES, ids=str)
def test_rows_depend_on_nothing_else_that_is_decoded(
    shape: Shape, weight_type: str, open_classifier: OpenClassifier
) -> None:
    classifier = open_classifier(of_types(shape, weight_type), specs(), **RUNTIME, n_batch=700)
    assert 256 < len(classifier.prompts[1].prefix) < 512
    for n in (1, 2, 3, 8, 9, 26, 64, 104, 130, 260):
        alone = rows(classifier, n, prompt=1)
        for n_other in (1, 7, 33, 120, 390):
            beside = rows(classifier, n, n_other, prompt=1)
            np.testing.assert_array_equal(beside, alone, err_msg=f"{n} tokens beside {n_other}")


@pytest.mark.parametrize("scoring", ["tree", "joint"])
def test_answers_do_not_depend_on_who_shares_the_decode(scoring: Scoring, open_classifier: OpenClassifier) -> None:
    # joint scoring multiplies the whole head, and the kernels take one with a multiple of 32 rows
    shape = {**SHAPES[0], "n_vocab": 576 if scoring == "joint" else None}
    classifier = open_classifier(of_types(shape, "Q4_K", "Q6_K"), specs(scoring), **RUNTIME, max_batch=4)

    def scores(results: Any) -> list[list[float]]:
        return [[score.score for prompt in result.results for score in prompt.scores] for result in results]

    alone = scores(classifier.classify(query) for query in QUERIES)
    assert scores(classifier.classify_batch(QUERIES)) == alone
    assert scores(classifier.classify_batch(QUERIES[::-1]))[::-1] == alone


# Attention that reads only the cells that a token may see, in whole models on a CUDA device (patch 8).


LARGEST_DIFFERENCE = 0.05
"""From the CPU's, root mean square of a row of unit size. Products with Q8_0 weights round activations: where attention
alone was another, rows differed by up to 0.022 on a CPU; one other cell among 40 made 0.13 and more.
"""
ON_CPU = {"flash_attn": False, "visible_cells": False}
"""llama.cpp's attention with a mask, on a CPU."""
HEADS = [(32, 4, 2), (64, 4, 4), (64, 8, 1), (80, 4, 2), (96, 6, 3), (128, 4, 2), (128, 8, 2), (128, 7, 1)]
"""Head size, query heads, key and value heads."""


def assert_alike(found: Any, wanted: Any) -> None:
    assert np.sqrt(np.mean((found - wanted) ** 2, axis=1)).max() < LARGEST_DIFFERENCE


@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_random_decodes(heads: tuple[int, int, int], open_context: OpenContext) -> None:
    model = {"heads": heads, "weight_type": "Q8_0"}
    both = [open_context(model, n_gpu_layers=-1, **BRANCHING), open_context(model, **BRANCHING, **ON_CPU)]
    assert both[0].why_no_visible_cells is None
    for found, wanted in random_decodes(np.random.default_rng(4), both, 30, 24):
        assert_alike(found, wanted)


@cases(
    ({"heads": (40, 5, 5)}, {}, "the GPU has no such attention for heads of this size"),
    ({"heads": (256, 2, 1)}, {}, "the GPU has no such attention for heads of this size"),
    ("qwen3", {"kv_type": "f32"}, "the cache is not F16, which it must be on a GPU"),
    ("qwen3", {"kv_type": "q8_0"}, "the cache is neither F16 nor F32"),
    ("qwen3", {"flash_attn": True}, "another kind of attention was asked for"),
    ("qwen3", {"flash_attn": False}, "another kind of attention was asked for"),
    ("gemma3", {}, "the model has sliding windows, which such attention on a GPU does not know"),
    ("falcon-h1", {}, "the model has recurrent layers, and is on a GPU"),
    ids=str,
)
def test_what_cannot_have_it_says_why(
    model: ModelSpec, options: dict[str, Any], why: str, open_context: OpenContext
) -> None:
    assert open_context(model, n_gpu_layers=-1, **options).why_no_visible_cells == why


def test_some_layers_on_the_cpu(open_context: OpenContext) -> None:
    """The head is the first to go to the GPU, then one of the two layers."""
    context = open_context("qwen3", n_gpu_layers=2)
    assert context.why_no_visible_cells == "the model has layers on a GPU and on the CPU"


def test_other_cells_and_where_cells_lie_do_not_matter(open_context: OpenContext) -> None:
    """To a bit: with thousands of others' cells in the cache, and with cells scattered among theirs."""
    random = np.random.default_rng(2)
    sizes = {"n_ctx": 9216, "n_batch": 512, "n_outputs_max": 512, "n_seq_max": 48}
    context, other = (open_context({"weight_type": "Q8_0"}, n_gpu_layers=-1, **sizes) for _ in range(2))
    tokens = random_tokens(random, context, 153)
    check_cells_of_others(random, context, tokens, decode_sequence(other, tokens), 8192)


def test_a_graph_serves_any_number_of_others_cells(open_context: OpenContext) -> None:
    random = np.random.default_rng(5)
    context = open_context({"weight_type": "Q8_0"}, n_gpu_layers=-1, n_ctx=4096, n_seq_max=40)
    context.keep_shapes(1)
    for seq in range(40):
        decode_sequence(context, random_tokens(random, context, 64), seq=seq)
    assert context.counters().n_graphs_reused == 39


def test_a_long_sequence_and_many_branches(open_context: OpenContext) -> None:
    """Lists that grow a hundredfold from one decode to the next, in parts that are put together."""
    model = {"heads": (64, 4, 2), "weight_type": "Q8_0"}
    sizes = {"n_ctx": 2304, "n_batch": 1024, "n_outputs_max": 1024, "n_seq_max": 40}
    found = []
    for n_gpu_layers, options in ((-1, {}), (0, ON_CPU)):
        random, context = np.random.default_rng(6), open_context(model, n_gpu_layers=n_gpu_layers, **sizes, **options)
        tokens = random_tokens(random, context, 1024)
        branches = [(token, 1024 + i // 32, [i % 32]) for i, token in enumerate(random_tokens(random, context, 64))]
        context.keep_shapes(2)
        rows = [decode_sequence(context, tokens[:3], seq=35), decode_sequence(context, tokens)]
        for seq in range(1, 32):
            context.share(0, seq, 0, 1024)
        rows += [decode(context, branches), decode_sequence(context, tokens[3:40], seq=35, start=3)]
        found.append(np.concatenate(rows))
    assert_alike(found[0], found[1])


def test_a_classifier_has_it_on_a_gpu(open_classifier: OpenClassifier) -> None:
    for options, reads_visible in (({}, True), ({"flash_attn": True}, False)):
        classifier = open_classifier({"weight_type": "Q8_0"}, [ITEM], n_gpu_layers="all", **options)
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
    weight_type: str, write_config: WriteConfig, run_python: RunPython
) -> None:
    """llama.cpp would copy weights to the GPU for decodes of 32 tokens and more, and round otherwise there."""
    model = {"weight_type": weight_type, "n_embd": 512, "n_ff": 1024}
    config = write_config(model, [COLOR], n_gpu_layers=0)
    visible, hidden = (run_python(WITHOUT_LAYERS, config, kind) for kind in ("visible", "hidden"))
    assert visible.stdout.startswith("True"), visible.stderr
    assert visible.stdout == hidden.stdout


# The direct matrix kernels against stock's on a CUDA device: right within rounding, at work where they should be.


LEFT_TO_STOCK = 1
LARGEST_OF_HEAD = 0.05  # measured: 0.012, of scores down to -36
TAKEN = (2, 3, 7, 8, 9, 16, 17, 26, 33, 40, 57, 64, 65, 72, 81, 104, 112, 113, 128, 129, 160, 161, 225, 300)


MORE_SHAPES = [{"n_embd": 768, "n_ff": 512, "tied": True, "heads": (128, 6, 2)}, *SHAPES[2:]]
DIRECT = [
    *(of_types(SHAPES[0], weight_type) for weight_type in sorted(OWN_TYPES["GPU"])),
    *(of_types(shape, weight_type) for weight_type in ("Q4_K", "Q6_K", "Q8_0") for shape in MORE_SHAPES),
]


@pytest.mark.parametrize("model", DIRECT, ids=str)
def test_hidden_states_are_stock_s_within_rounding(model: Shape, open_classifier: OpenClassifier) -> None:
    classifier = open_classifier(model, [ITEM], n_gpu_layers="all")
    # the one token is stock's: what differs, the kernels computed in the decode that is compared
    assert len(classifier.prompts[0].prefix) == 1
    sizes = compare_variants(classifier, [LEFT_TO_STOCK, *TAKEN], 1).sizes
    rounding = max(size.rounding for size in sizes)
    for size in sizes:
        n = size.n_tokens
        differences = {name: max(measured.differences) for name, measured in size.variants.items()}
        differences.pop(LANES, None)
        assert differences.pop("+ visible cells") < 3 * rounding  # which is no kernel of products
        if n == LEFT_TO_STOCK:
            before_rope = [differences[name] for name in list(differences)[: list(differences).index("+ rope")]]
            assert set(before_rope) == {0.0}, (n, differences)
        else:
            assert all(differences[name] > 0 for name in list(differences)[1:]), (n, differences)
        assert all(value < 3 * rounding for value in differences.values()), (n, rounding, differences)
        assert differences["+ quantize once"] == differences["+ direct"]  # the same numbers, quantised less often
        assert differences["+ short loops"] == differences["+ rope"]  # the same sums in the same order


@pytest.mark.parametrize("head_type", ["Q4_K", "Q6_K", "Q8_0"])
def test_the_head_is_taken_too(head_type: str, open_classifier: OpenClassifier) -> None:
    """Its 151,936 rows are more tiles than any other matrix has; nothing else of this model is quantised."""
    model = {"n_embd": 512, "n_ff": 512, "n_vocab": 151_936, "tied": True, "head_type": head_type}
    labels = ("jump", "jumper", "jumpsuit", "tank top", "trench coat", "none")
    specs = [PromptSpec(name="item", template="item of {query}\nlabel:", labels=labels, scoring="joint")]
    scores = []
    for variables in list(variants().values())[:: len(variants()) - 1]:
        with patch.dict("os.environ", variables):
            classifier = open_classifier(model, specs, n_gpu_layers="all")
        scores.append([score.score for score in classifier.classify("red dress for girl").results[0].scores])
    assert scores[0] != scores[1]
    np.testing.assert_allclose(scores[1], scores[0], rtol=0, atol=LARGEST_OF_HEAD)
