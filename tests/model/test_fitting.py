"""What a context takes is known before the weights are loaded, and layers make room for it."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from conftest import MakeModel, WriteConfig
from oracle import PromptSpec

from qcls_gguf import Classifier, Config, ConfigError, Model, load_config
from qcls_gguf.config.schema import RuntimeConfig
from qcls_gguf.engine import open as engine_open
from qcls_gguf.engine.open import context_settings
from qcls_gguf.labelling.worker import LabelSettings, Worker
from qcls_gguf.model import open as model_open
from qcls_gguf.model import placement
from qcls_gguf.model.open import context_memory, open_vocabulary
from qcls_gguf.model.placement import flash_attention
from qcls_gguf.native import ContextMemory, Device, NativeContext
from qcls_gguf.opening import ClassifierOpener

COLOUR = PromptSpec(name="colour", template="the colour of {query} is", labels=("red", "light blue", "light green"))
KIND = PromptSpec(name="kind", template="the kind of {query} is", labels=("dress", "shirt"))
EXACT = PromptSpec(name="exact", template="the size of {query} is", labels=("small", "very large"), scoring="joint")
MANY = [PromptSpec(name=f"p{n}", template=f"{n} of {{query}} is", labels=("red", "blue", "{n}")) for n in range(64)]
JOINT = [
    PromptSpec(name=name, template=f"of {{query}} the {name} is", labels=("red", "light blue"))
    for name in ("a", "b", "c")
]
GIB = 1 << 30


def most_taken(classifier: Classifier) -> ContextMemory:
    """What the context of a classifier takes, and took while it was opened, when it had logits."""
    context, config = classifier.engine.context, classifier.config
    taken = context.counters()
    with NativeContext(
        classifier.engine.model.native,
        n_ctx=context.n_ctx,
        n_batch=context.n_batch,
        n_seq_max=context.n_seq_max,
        n_outputs_max=context.n_outputs_max,
        n_threads=1,
        hidden_only=False,
        flash_attn=flash_attention(config.runtime, classifier.engine.model.n_gpu_layers),
        kv_type=config.runtime.kv_type,
    ) as first:
        n_opening = first.counters().compute_bytes
    return ContextMemory(cache_bytes=taken.cache_bytes, compute_bytes=max(taken.compute_bytes, n_opening))


@pytest.mark.parametrize(
    ("name", "prompts", "runtime"),
    [
        ("qwen3", [COLOUR, KIND], {}),
        ("qwen3", MANY, {}),
        ("qwen3", JOINT, {"max_query_tokens": 400, "max_batch": 9}),
        ("qwen3", [COLOUR, EXACT], {}),
        ("qwen3", [COLOUR, KIND], {"kept_queries": 5, "kv_type": "f32", "flash_attn": True}),
        ("qwen3", [COLOUR, KIND], {"kv_type": "q4_0", "max_query_tokens": 300}),
        ("gemma3", [COLOUR, KIND], {}),
        ("qwen35", MANY, {"max_batch": 1}),
        ("falcon-h1", [COLOUR, KIND], {"max_batch": 16}),
        ("kimi-linear", [COLOUR, KIND], {}),
    ],
)
def test_what_is_measured_is_what_a_context_takes(
    name: str, prompts: list[PromptSpec], runtime: dict[str, Any], make_model: MakeModel, write_config: WriteConfig
) -> None:
    path = make_model(name)
    config = load_config(write_config(path, prompts, n_shapes=0, **runtime))
    with Model.open(config.model, config.runtime) as model:
        with open_vocabulary(model.file, config.runtime) as vocabulary:
            measured = context_memory(model.file, model.placement, context_settings(config, vocabulary))
        with Classifier.from_config(config, model=model) as classifier:
            taken = most_taken(classifier)
    assert measured == taken
    assert measured.cache_bytes > 0 < measured.compute_bytes


@pytest.fixture
def config(write_config: WriteConfig) -> Config:
    return load_config(write_config("qwen3", [COLOUR], n_gpu_layers="auto", try_model=False))


def test_a_context_too_small_is_refused_before_weights_are_loaded(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(config, runtime=replace(config.runtime, n_ctx=10))
    monkeypatch.setattr(placement, "_PLENTY", GIB)
    seen: list[float] = []
    gpu = Device(kind="GPU", name="", free_bytes=GIB, total_bytes=GIB)
    for module in (model_open, engine_open):
        monkeypatch.setattr(module, "gpus", lambda: [gpu])
    with pytest.raises(ConfigError, match=r"runtime\.n_ctx: 10 is less than"):
        Classifier.from_config(small, on_load=seen.append)
    assert not seen


@pytest.mark.parametrize(("free_mib", "n_shapes", "wanted"), [(300, "auto", 24), (100, "auto", 2), (100, 7, 7)])
def test_kept_graphs_leave_memory_on_a_gpu(
    free_mib: int, n_shapes: int | Literal["auto"], wanted: int, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is free does not change with the graphs here, so as few as possible are kept where it is too little."""
    gpu = Device(kind="GPU", name="made up", free_bytes=free_mib << 20, total_bytes=80 * GIB)
    monkeypatch.setattr(placement, "gpus", lambda: [gpu])
    runtime = replace(config.runtime, n_gpu_layers="all", n_shapes=n_shapes)
    monkeypatch.setattr(model_open, "gpus", lambda: [gpu])
    with Classifier.from_config(replace(config, runtime=runtime)) as classifier:
        assert classifier.engine.model.n_gpu_layers == 3
        assert classifier.engine.context.counters().n_shapes == wanted
        assert classifier.classify("red").labels


def test_what_is_opened_is_what_was_measured(
    write_config: WriteConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a job decides how many queries a decode has: as many as 2 GiB of states allow, at most 32."""
    gpu = Device(kind="GPU", name="made up", free_bytes=2 * GIB, total_bytes=80 * GIB)
    for module in (model_open, engine_open):
        monkeypatch.setattr(module, "gpus", lambda: [gpu])
    monkeypatch.setattr(placement, "_PLENTY", GIB)
    fitted_to: list[ContextMemory] = []

    def fitted(
        runtime: RuntimeConfig,
        weights: placement.Weights,
        gpus: Sequence[Device],
        context_with: Callable[[placement.Placement], ContextMemory],
    ) -> tuple[placement.Placement, ContextMemory]:
        placed, context = placement.fitted(runtime, weights, gpus, context_with)
        fitted_to.append(context)
        return placed, context

    monkeypatch.setattr(engine_open, "fitted", fitted)
    path = write_config("qwen35", [COLOUR, KIND], n_gpu_layers="auto", try_model=False)
    with ExitStack() as stack:
        opener = stack.enter_context(ClassifierOpener())
        settings = LabelSettings(config=load_config(path), inputs=(), out=tmp_path)
        classifier = stack.enter_context(closing(Worker(settings, opener))).classifier
        taken = most_taken(classifier)
        assert classifier.config.runtime.max_batch == 32
    assert fitted_to == [taken]
