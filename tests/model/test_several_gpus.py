"""A model on one of several GPUs, and divided among them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import MakeModel, OpenContext, WriteConfig
from nodes import BRANCHING, random_decodes
from oracle import PromptSpec
from oracle_prompts import probabilities

from qcls_gguf import Classifier, Config, Model, load_config
from qcls_gguf.engine import open as engine_open
from qcls_gguf.engine.open import context_settings
from qcls_gguf.model import open as model_open
from qcls_gguf.model.header import read_header
from qcls_gguf.model.open import context_memory, open_vocabulary
from qcls_gguf.model.placement import gpus, weights_of
from qcls_gguf.native import ContextMemory, NativeContext, NativeModel
from qcls_gguf.native.context import described

pytestmark = pytest.mark.skipif(len(gpus()) < 2, reason="needs two GPUs")
PROMPTS = [
    PromptSpec(name="colour", template="the colour of {query} is", labels=("red", "light blue", "light green")),
    PromptSpec(name="kind", template="the kind of {query} is", labels=("dress", "shirt"), scoring="joint"),
]
QUERIES = ["red dress", "a long light blue shirt with green dots, for the summer", "b"]
MIB = 1 << 20


@pytest.mark.parametrize("share", [(5, 8), (1, 12), (12, 1), (7, 6), (0, 13), (4, 5)])
def test_each_gpu_has_the_layers_that_it_is_told(share: tuple[int, int], make_model: MakeModel) -> None:
    """12 layers and a head; told by the cache, of which all layers have as much."""
    path = make_model("qwen3", n_layer=12)
    total, on_gpus = caches(path, share)
    assert on_gpus == [share[0] * total // 12, (share[1] - 1) * total // 12]


@pytest.mark.parametrize("share", [(4, 9), (9, 4)])
def test_states_are_where_their_layers_are(share: tuple[int, int], make_model: MakeModel) -> None:
    total, on_gpus = caches(make_model("qwen35", n_layer=12), share)
    assert sum(on_gpus) == total
    assert (on_gpus[0] < on_gpus[1]) == (share[0] < share[1])


def caches(path: Path, share: tuple[int, int]) -> tuple[int, list[int]]:
    """The bytes of the cache of a context of a model so divided, and those on each GPU."""
    n = sum(share)
    with NativeModel(path, n_gpu_layers=n, share=share, without_weights=True) as native:
        facts = described(NativeContext(native, n_threads=1, **BRANCHING).handle)
    return facts.cache_bytes, list(facts.gpu_cache_bytes[:2])


@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_a_divided_model_computes_the_same(name: str, make_model: MakeModel, open_context: OpenContext) -> None:
    path = make_model(name, weight_type="Q8_0")
    both = [open_context(path, n_gpu_layers=-1, share=share, **BRANCHING) for share in ((), (1,))]
    for found, wanted in random_decodes(np.random.default_rng(4), both, 30, 24):
        np.testing.assert_array_equal(found, wanted)


def measured(model: Model, config: Config) -> ContextMemory:
    """What the context of a configuration takes with all layers on one GPU."""
    with open_vocabulary(model.file, config.runtime) as vocabulary:
        return context_memory(model.file, vocabulary.placement, context_settings(config, vocabulary))


@pytest.mark.parametrize(
    ("name", "given_layers", "rooms", "n_layers", "n_gpus"),
    [
        ("qwen3", "auto", (0.45, 0.75), 13, 2),
        ("qwen3", "auto", (0.25, 0.45), None, 2),
        ("qwen3", "auto", (-9, 1.5), 13, 2),
        ("qwen3", "all", (0.8, 0.4), 13, 2),
        ("qwen3", 9, (0.2, 0.7), 9, 2),
        ("qwen3", 5, (0.7, 0.7), 5, 1),
        ("qwen35", "auto", (0.45, 0.8), 13, 2),
        ("qwen35", "auto", (0.25, 0.35), None, 2),
    ],
)
def test_each_gpu_takes_no_more_than_it_has_free(
    name: str,
    given_layers: Any,
    rooms: tuple[float, float],
    n_layers: int | None,
    n_gpus: int,
    make_model: MakeModel,
    write_config: WriteConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """GPUs that say they have so little free, beside 0.5 GiB and compute buffers: parts of what all layers take.

    12 layers and a head; n_layers: how many of them are on GPUs; None: some, but not all.
    """
    path = make_model(name, n_layer=12, n_embd=1024, n_ff=4096, weight_type="F16")
    config = load_config(write_config(path, PROMPTS, n_gpu_layers=given_layers, n_threads=4))
    on_cpu = config.changed(runtime=config.runtime.changed(n_gpu_layers=0))
    with Classifier.from_config(on_cpu) as classifier:
        wanted = [probabilities(classifier.classify(query)) for query in QUERIES]
        context = measured(classifier.engine.model, config)
    weights = weights_of(read_header(path).tensors, 12)
    all_bytes = sum(weights) + context.cache_bytes
    before = [gpu.free_bytes for gpu in gpus()]
    free = [max(0, round(512 * MIB + context.compute_bytes + room * all_bytes)) for room in rooms]
    scarce = [replace(gpu, free_bytes=each) for gpu, each in zip(gpus(), free, strict=False)]
    for module in (model_open, engine_open):
        monkeypatch.setattr(module, "gpus", lambda: scarce)
    with Classifier.from_config(config) as classifier:
        placed = classifier.engine.model.placement
        found = [probabilities(classifier.classify(query)) for query in QUERIES]
        taken = [was - gpu.free_bytes for was, gpu in zip(before, gpus(), strict=True)]
    print(placed, "MiB taken and free:", *(each // MIB for each in (*taken, *free)))
    assert placed.n_gpu_layers == n_layers if n_layers else 0 < placed.n_gpu_layers < 13
    assert placed.n_gpus == n_gpus
    for gpu_layers, n_taken, n_free in zip(placed.gpu_layers, taken, free, strict=False):
        assert n_taken <= n_free if gpu_layers else n_taken < 16 * MIB
    np.testing.assert_allclose(found, wanted, atol=0.05)
