"""Weights in lane order on a CUDA device: the same products as in the file's order, by whichever kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from conftest import MakeModel, OpenClassifier, WriteConfig
from gpu_products import runs_code_for_75
from oracle import PromptSpec

from qcls_gguf import Classifier, load_config
from qcls_gguf.bench.ab import compare_variants, largest_difference
from qcls_gguf.bench.benchmark import benchmark
from qcls_gguf.bench.forward import sequence_plan, timed_decode
from qcls_gguf.bench.measure import BenchmarkSettings
from qcls_gguf.inspection.inspect import inspect_classifier
from qcls_gguf.model import OpenModels
from qcls_gguf.native import NativeModel, WeightOrder, sees_cuda_gpu
from qcls_gguf.native.cuda_driver import first_cuda_device
from qcls_gguf.native.kernel_steps import LANE_ORDER, STEPS
from qcls_gguf.opening import ClassifierOpener
from qcls_gguf.plan.tree import Root

pytestmark = pytest.mark.skipif(not sees_cuda_gpu(), reason="needs a CUDA device")
SPECS = [PromptSpec(name="item", template="<|im_start|>{query}<|im_end|>label:", labels=("dress", "coat", "none"))]
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


def pair(
    path: Path, open_classifier: OpenClassifier, monkeypatch: pytest.MonkeyPatch, **runtime: Any
) -> tuple[Classifier, Classifier]:
    """The model with its matrices in the file's order and in lane order."""
    settings = {"n_gpu_layers": "all", "n_batch": 640, "state_cache": False, **runtime}
    monkeypatch.setenv("GGML_CUDA_LANE_ORDER", "0")
    plain = open_classifier(path, SPECS, **settings)
    monkeypatch.setenv("GGML_CUDA_LANE_ORDER", "1")
    lanes = open_classifier(path, SPECS, **settings)
    assert plain.engine.model.facts.n_lane_ordered == 0
    return plain, lanes


def rows(classifier: Classifier, n: int, n_other: int = 0) -> npt.NDArray[np.float32]:
    prefix = classifier.configured.active.held[0]
    root = Root(holder=prefix.holder, n_cached=len(prefix.tokens))
    return timed_decode(classifier.engine, sequence_plan(classifier.engine, root, n, n_other), root)[0].hidden.copy()


@pytest.mark.parametrize("weight_type", ["Q6_K", "Q8_0"])
@pytest.mark.parametrize(("name", "shape"), SHAPES)
def test_hidden_states_differ_by_rounding_alone(
    name: str,
    shape: dict[str, Any],
    weight_type: str,
    make_model: MakeModel,
    open_classifier: OpenClassifier,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = make_model(name, weight_type=weight_type, head_type=weight_type, **shape)
    plain, lanes = pair(path, open_classifier, monkeypatch, n_batch=2176)
    assert lanes.engine.model.facts.n_lane_ordered == (
        7 * lanes.engine.model.facts.n_layer if runs_code_for_75() else 0
    )
    rounding = max(largest_difference(rows(plain, n, 8), rows(plain, n)) for n in SIZES)
    for n in (*SIZES, MANY, 2048, TOO_MANY):
        assert largest_difference(rows(lanes, n), rows(plain, n)) < 3 * rounding, n


@pytest.mark.parametrize("weight_type", ["Q4_K", "Q6_K", "Q8_0"])
@pytest.mark.parametrize(("name", "shape"), SHAPES)
def test_batch_invariant_contexts_have_the_same_bits(
    name: str,
    shape: dict[str, Any],
    weight_type: str,
    make_model: MakeModel,
    open_classifier: OpenClassifier,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There sums are added in an order that the matrix alone decides, and lane order does not change it."""
    path = make_model(name, weight_type=weight_type, head_type="Q6_K", **shape)
    plain, lanes = pair(path, open_classifier, monkeypatch, batch_invariant=True)
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
    config = load_config(write_config(path, SPECS, n_gpu_layers="all", n_batch=640, state_cache=False))
    with OpenModels() as models, monkeypatch.context() as patch:
        patch.setenv("GGML_CUDA_LANE_ORDER", "1")
        models.of(config)
        patch.setenv("GGML_CUDA_MMQ_DIRECT", "0")  # for contexts: the model is loaded
        with Classifier.from_config(config, model=models) as lanes:
            patch.setenv("GGML_CUDA_LANE_ORDER", "0")
            plain = open_classifier(path, SPECS, n_gpu_layers="all", n_batch=640, state_cache=False)
            for n in (2, 5, 8, 9, 33, 130, MANY):
                np.testing.assert_array_equal(rows(lanes, n), rows(plain, n), err_msg=f"{n} tokens")


def test_the_device_decides_where_nobody_else_does(make_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LANE_ORDER.variable, raising=False)
    device = first_cuda_device()
    path = make_model("qwen3", weight_type="Q8_0", head_type="Q8_0", **SHAPES[0][1])

    def share(order: WeightOrder) -> float:
        with NativeModel(path, n_gpu_layers=-1, weight_order=order) as model:
            return model.facts.n_lane_ordered / (7 * model.facts.n_layer)

    by_default = device is not None and device.capability == 75
    assert share(WeightOrder.BY_DEVICE) == (runs_code_for_75() and by_default)
    for value in ("0", "1"):
        monkeypatch.setenv(LANE_ORDER.variable, value)
        assert share(WeightOrder.BY_DEVICE) == (runs_code_for_75() and value == "1")
        assert share(WeightOrder.FILE) == 0
        assert share(WeightOrder.LANES) == runs_code_for_75()
    monkeypatch.setenv("GGML_CUDA_MMQ_DIRECT", "0")
    assert share(WeightOrder.LANES) == 0


def test_what_measures_llama_cpp_s_kernels_has_the_file_s_order(
    make_model: MakeModel, write_config: WriteConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the models of all other commands have lane order."""
    monkeypatch.setenv(LANE_ORDER.variable, "1")
    path = make_model("qwen3", weight_type="Q8_0", head_type="Q8_0", **SHAPES[0][1])
    config = load_config(write_config(path, SPECS, n_gpu_layers="all"))
    settings = BenchmarkSettings(
        configs=(config,), n_requests=1, n_warm_up=0, n_repeats=1, forward=True, forward_tokens=(2, 33)
    )
    with ClassifierOpener() as opener:
        found = [benchmark(replace(settings, ab=ab), opener) for ab in ("on", "off", "where possible")]
        counts = [record.environment.n_lane_ordered for record in found]
        with opener.open(config) as classifier:
            n_all = classifier.model.n_lane_ordered
            assert inspect_classifier(classifier).model.n_lane_ordered == n_all
    assert counts == [0, n_all, n_all]
    assert (n_all > 0) == runs_code_for_75()
    assert found[1].forward_ab is None
    for record in (found[0], found[2]):
        assert record.forward_ab is not None
        steps = {step.name for step in record.forward_ab.steps}
        assert (LANE_ORDER.name in steps) == runs_code_for_75()
        rounding = max(size.rounding or 1 for size in record.forward_ab.sizes)
        for size in record.forward_ab.sizes:
            assert all((each.difference or 0) < 3 * rounding for each in size.variants)


def test_layers_on_the_cpu_stay_in_the_file_s_order(
    make_model: MakeModel, open_classifier: OpenClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_model("qwen3", weight_type="Q8_0", head_type="Q8_0", **SHAPES[0][1])
    plain, lanes = pair(path, open_classifier, monkeypatch, n_gpu_layers=2)  # the head and the last layer
    n_layer = lanes.engine.model.facts.n_layer
    assert lanes.engine.model.facts.n_lane_ordered < 7 * n_layer
    assert (lanes.engine.model.facts.n_lane_ordered > 0) == runs_code_for_75()
    for n in (1, 2, 9, 33, 130):
        assert largest_difference(rows(lanes, n), rows(plain, n)) < LARGEST_OF_A_LAYER, n


@pytest.mark.parametrize("weight_type", ["Q4_K", "Q8_0"])
def test_it_is_compared_on_a_second_loaded_model(
    weight_type: str, make_model: MakeModel, open_classifier: OpenClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(LANE_ORDER.variable, raising=False)
    path = make_model("qwen3", weight_type=weight_type, head_type="Q6_K", **SHAPES[0][1])
    classifier = open_classifier(path, SPECS, n_gpu_layers="all")
    found = compare_variants(classifier, [2, 8, 9, 26, 33, 64, 104], 1, lambda: None)
    if not runs_code_for_75():
        assert (found.left_out or "").startswith("it is for cards that run code for 7.5, and this one runs code for")
    elif weight_type == "Q4_K":
        assert (found.left_out or "").startswith("the model has nothing to rearrange")
    else:
        assert found.left_out is None
        assert found.steps == (*STEPS, LANE_ORDER)
        rounding = max(size.rounding for size in found.sizes.values())
        for n, size in found.sizes.items():
            assert max(size.variants[f"+ {LANE_ORDER.name}"].differences) < 3 * rounding, n
    assert len(classifier.engine.model.native.contexts) == 1
