"""Weights in lane order on a CUDA device: the same products as in the file's order, by whichever kernels."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from conftest import MakeModel, OpenClassifier, WriteConfig, sees_cuda_gpu
from kernels.variants import capability, hidden_states, largest_difference, runs_code_for_75
from kernels.variants import hidden_states as rows
from oracle import ITEM, PromptSpec

from qcls_gguf import Classifier, OpenModels, load_config
from qcls_gguf.engine.open import open_model
from qcls_gguf.native import NativeModel
from qcls_gguf.native.device import LANE_ORDER

pytestmark = pytest.mark.skipif(not sees_cuda_gpu(), reason="needs a CUDA device")
Pair = Callable[..., list[Classifier]]
SIZES = (1, 2, 3, 8, 9, 16, 17, 26, 33, 40, 57, 64, 65, 72, 73, 81, 104, 112, 113, 129, 161, 225, 300, 512)
LARGEST_OF_A_LAYER = 0.02
"""of rows of unit size. Measured: 0.004, with one token, which other kernels take in the file's order"""
MANY = 600  # columns: of a matrix in the file's order llama.cpp's kernels take them
TOO_MANY = 2100  # of one in lane order, too: they read a copy
SHAPES: list[tuple[str, dict[str, Any]]] = [
    ("qwen3", {"n_embd": 512, "n_ff": 1024, "tied": False}),
    ("qwen3", {"n_embd": 1024, "n_ff": 3072, "tied": True, "heads": (128, 8, 2)}),
    ("llama", {"n_embd": 512, "n_ff": 1024}),
    ("qwen2", {"n_embd": 512, "n_ff": 1024}),
]


@pytest.fixture
def pair(open_classifier: OpenClassifier, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """Opens a model with its matrices in the file's order and in lane order."""

    def opened(path: Path, **runtime: Any) -> list[Classifier]:
        both = []
        for order in ("0", "1"):
            monkeypatch.setenv(LANE_ORDER, order)
            settings = {"n_gpu_layers": "all", "n_batch": 640, "state_cache": False, **runtime}
            both.append(open_classifier(path, [ITEM], **settings))
        assert both[0].engine.model.facts.n_lane_ordered == 0
        return both

    return opened


@pytest.mark.parametrize("weight_type", ["Q6_K", "Q8_0"])
@pytest.mark.parametrize(("name", "shape"), SHAPES)
def test_hidden_states_differ_by_rounding_alone(
    name: str, shape: dict[str, Any], weight_type: str, make_model: MakeModel, pair: Pair
) -> None:
    path = make_model(name, weight_type=weight_type, head_type=weight_type, **shape)
    plain, lanes = pair(path, n_batch=2176)
    assert lanes.engine.model.facts.n_lane_ordered == (
        7 * lanes.engine.model.facts.n_layer if runs_code_for_75() else 0
    )
    rounding = max(largest_difference(rows(plain, n, 8), rows(plain, n)) for n in SIZES)
    for n in (*SIZES, MANY, 2048, TOO_MANY):
        assert largest_difference(rows(lanes, n), rows(plain, n)) < 3 * rounding, n


@pytest.mark.parametrize("weight_type", ["Q4_K", "Q6_K", "Q8_0"])
@pytest.mark.parametrize(("name", "shape"), SHAPES)
def test_batch_invariant_contexts_have_the_same_bits(
    name: str, shape: dict[str, Any], weight_type: str, make_model: MakeModel, pair: Pair
) -> None:
    """There sums are added in an order that the matrix alone decides, and lane order does not change it."""
    path = make_model(name, weight_type=weight_type, head_type="Q6_K", **shape)
    plain, lanes = pair(path, batch_invariant=True)
    for n in (*SIZES, MANY):
        np.testing.assert_array_equal(rows(lanes, n), rows(plain, n), err_msg=f"{n} tokens")


@pytest.mark.parametrize("weight_type", ["Q6_K", "Q8_0"])
def test_llama_cpp_s_kernels_read_a_copy_in_the_file_s_order(
    weight_type: str,
    make_model: MakeModel,
    write_config: WriteConfig,
    open_classifier: OpenClassifier,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = make_model("qwen3", weight_type=weight_type, head_type=weight_type, **SHAPES[0][1])
    config = load_config(write_config(path, [ITEM], n_gpu_layers="all", n_batch=640, state_cache=False))
    with OpenModels() as models, monkeypatch.context() as patch:
        patch.setenv("QCLS_LANE_ORDER", "1")
        open_model(config, models)
        patch.setenv("QCLS_MMQ_DIRECT", "0")  # for contexts: the model is loaded
        with Classifier.from_config(config, model=models) as lanes:
            patch.setenv("QCLS_LANE_ORDER", "0")
            plain = open_classifier(path, [ITEM], n_gpu_layers="all", n_batch=640, state_cache=False)
            for n in (2, 5, 8, 9, 33, 130, MANY):
                np.testing.assert_array_equal(rows(lanes, n), rows(plain, n), err_msg=f"{n} tokens")


def test_the_device_decides_where_nobody_else_does(make_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_model("qwen3", weight_type="Q8_0", head_type="Q8_0", **SHAPES[0][1])

    def share(order: str | None) -> float:
        monkeypatch.setenv(LANE_ORDER, order) if order else monkeypatch.delenv(LANE_ORDER, raising=False)
        with NativeModel(path, n_gpu_layers=-1) as model:
            return model.facts.n_lane_ordered / (7 * model.facts.n_layer)

    assert share(None) == (runs_code_for_75() and capability() == 75)
    assert (share("0"), share("1")) == (0, runs_code_for_75())
    monkeypatch.setenv("QCLS_MMQ_DIRECT", "0")
    assert share("1") == 0


def test_layers_on_the_cpu_stay_in_the_file_s_order(make_model: MakeModel, pair: Pair) -> None:
    path = make_model("qwen3", weight_type="Q8_0", head_type="Q8_0", **SHAPES[0][1])
    plain, lanes = pair(path, n_gpu_layers=2)  # the head and the last layer
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
OTHER_SHAPES: list[tuple[str, dict[str, Any]]] = [
    ("qwen3", {"n_embd": 512, "n_ff": 1024, "tied": False}),
    ("qwen3", {"n_embd": 1024, "n_ff": 3072, "tied": True, "heads": (128, 8, 2)}),
    ("llama", {"n_embd": 512, "n_ff": 4096}),
    ("qwen2", {"n_embd": 512, "n_ff": 8192}),
]


def specs(scoring: Literal["tree", "joint"] = "tree") -> list[PromptSpec]:
    return [
        PromptSpec(name=name, template=f"<|im_start|>{text} {{query}}<|im_end|>label:", labels=LABELS, scoring=scoring)
        for name, text in TEXTS.items()
    ]


@pytest.mark.parametrize("weight_type", ["Q4_K", "Q6_K", "Q8_0"])
@pytest.mark.parametrize(("name", "shape"), OTHER_SHAPES)
def test_rows_do_not_depend_on_what_else_is_decoded(
    name: str, shape: dict[str, Any], weight_type: str, make_model: MakeModel, open_classifier: OpenClassifier
) -> None:
    path = make_model(name, weight_type=weight_type, head_type=weight_type, **shape)
    classifier = open_classifier(path, specs(), **RUNTIME, n_batch=700)
    assert 256 < len(classifier.prompts[1].prefix) < 512
    for n in (1, 2, 3, 8, 9, 26, 64, 104, 130, 260):
        alone = hidden_states(classifier, n, prompt=1)
        for n_other in (1, 7, 33, 120, 390):
            beside = hidden_states(classifier, n, n_other, prompt=1)
            np.testing.assert_array_equal(beside, alone, err_msg=f"{n} tokens beside {n_other}")


@pytest.mark.parametrize("scoring", ["tree", "joint"])
def test_answers_do_not_depend_on_who_shares_the_decode(
    scoring: Literal["tree", "joint"], make_model: MakeModel, open_classifier: OpenClassifier
) -> None:
    # joint scoring multiplies the whole head, and the kernels take one with a multiple of 32 rows
    n_vocab = 576 if scoring == "joint" else None
    path = make_model("qwen3", weight_type="Q4_K", head_type="Q6_K", n_vocab=n_vocab, **OTHER_SHAPES[0][1])
    classifier = open_classifier(path, specs(scoring), **RUNTIME, max_batch=4)

    def scores(results: Any) -> list[list[float]]:
        return [[score.score for prompt in result.results for score in prompt.scores] for result in results]

    alone = scores(classifier.classify(query) for query in QUERIES)
    assert scores(classifier.classify_batch(QUERIES)) == alone
    assert scores(classifier.classify_batch(QUERIES[::-1]))[::-1] == alone
