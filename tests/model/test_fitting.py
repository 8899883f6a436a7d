"""What a context takes is known before the weights are loaded, layers make room for it, and what is said where a GPU
has little memory left: it is made up and says how much it has free, and llama.cpp computes on the CPU."""

from collections.abc import Callable
from typing import Any

import pytest
from cases import cases
from conftest import RunPython, WriteConfig
from oracle import PromptSpec

from qcls_gguf import Classifier, Config, ConfigError, Model, ModelError, OpenModels, RuntimeConfig, load_config
from qcls_gguf.engine import open as engine_open
from qcls_gguf.engine.capacity import MOST_TOGETHER
from qcls_gguf.engine.open import context_settings, open_model
from qcls_gguf.engine.resources import shortage_on_gpus
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


@pytest.fixture
def leave(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Says how many MiB a GPU has free from now on. It is made up: llama.cpp computes on the CPU."""

    def left(mib: int) -> None:
        for module in (placement, model_open, engine_open):
            monkeypatch.setattr(module, "gpus", lambda: [Device(kind="GPU", name="made up", free_bytes=mib << 20)])

    return left


def most_taken(classifier: Classifier) -> ContextMemory:
    """What the context of a classifier takes, and took while it was opened, when it had logits."""
    context, model, runtime = classifier.engine.context, classifier.engine.model, classifier.config.runtime
    taken = context.counters()
    sizes = "n_ctx", "n_batch", "n_seq_max", "n_state_seqs", "n_outputs_max"
    options: dict[str, Any] = {name: getattr(context, name) for name in sizes}
    options |= {"flash_attn": flash_attention(runtime, model.n_gpu_layers), "kv_type": runtime.kv_type}
    with NativeContext(model.native, n_threads=1, hidden_only=False, **options) as first:
        n_opening = first.counters().compute_bytes
    return ContextMemory(cache_bytes=taken.cache_bytes, compute_bytes=max(taken.compute_bytes, n_opening))


@cases(
    ("qwen3", [COLOUR, KIND], {}),
    ("qwen3", MANY, {}),
    ("qwen3", JOINT, {"max_query_tokens": 400, "max_batch": 9}),
    ("qwen3", [COLOUR, EXACT], {}),
    ("qwen3", [COLOUR, KIND], {"kv_type": "f32", "flash_attn": True}),
    ("qwen3", [COLOUR, KIND], {"kv_type": "q4_0", "max_query_tokens": 300}),
    ("gemma3", [COLOUR, KIND], {}),
    ("qwen35", MANY, {"max_batch": 1}),
    ("falcon-h1", [COLOUR, KIND], {"max_batch": 16}),
    ("kimi-linear", [COLOUR, KIND], {}),
)
def test_what_is_measured_is_what_a_context_takes(
    name: str, prompts: list[PromptSpec], runtime: dict[str, Any], write_config: WriteConfig
) -> None:
    config = load_config(write_config(name, prompts, **runtime))
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


def test_a_context_too_small_is_refused_before_loading(
    config: Config, leave: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = config.changed(runtime=config.runtime.changed(n_ctx=10))
    monkeypatch.setattr(placement, "_PLENTY", GIB)
    seen: list[float] = []
    leave(1024)
    with pytest.raises(ConfigError, match=r"runtime\.n_ctx: 10 is less than"):
        Classifier.from_config(small, on_load=seen.append)
    assert not seen


@pytest.mark.parametrize(("free_mib", "wanted"), [(300, 24), (100, 2)])
def test_graphs_leave_gpu_memory(free_mib: int, wanted: int, config: Config, leave: Callable[[int], None]) -> None:
    """What is free does not change with the graphs here, so as few as possible are kept where it is too little."""
    leave(free_mib)
    runtime = config.runtime.changed(n_gpu_layers="all")
    with Classifier.from_config(config.changed(runtime=runtime)) as classifier:
        assert classifier.engine.model.n_gpu_layers == 3
        assert classifier.engine.context.counters().n_shapes == wanted
        assert classifier.classify("red").labels


def test_what_opens_was_measured(
    write_config: WriteConfig, leave: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a job decides how many queries a decode has: as many as 2 GiB of states allow, at most 32."""
    leave(2048)
    monkeypatch.setattr(placement, "_PLENTY", GIB)
    fitted_to: list[ContextMemory] = []

    def fitted_placement(*given: Any) -> Any:
        placed, context = placement.fitted_placement(*given)
        fitted_to.append(context)
        return placed, context

    monkeypatch.setattr(engine_open, "fitted_placement", fitted_placement)
    path = write_config("qwen35", [COLOUR, KIND], n_gpu_layers="auto", try_model=False)
    with ClassifierOpener() as opener, opener.open(load_config(path), max_batch=MOST_TOGETHER) as classifier:
        taken = most_taken(classifier)
        assert classifier.config.runtime.max_batch == 32
    assert fitted_to == [taken]


TAKEN = ContextMemory(cache_bytes=GIB, compute_bytes=GIB // 2)


def test_what_is_said_where_memory_is_lacking() -> None:
    text = shortage_on_gpus(RuntimeConfig(), 30, TAKEN, [5 << 28], 0)
    assert text == (
        "it takes 1.00 GiB of cache and states, 0.50 GiB of compute buffers, and 1.2 GiB are free on the GPU beside "
        "30 layers that n_gpu_layers auto put there: set runtime.n_gpu_layers to less than 30, or lower "
        "runtime.max_query_tokens, question_cells or max_batch"
    )
    text = shortage_on_gpus(RuntimeConfig(n_gpu_layers=20), 20, TAKEN, [7 << 28, 5 << 28], 2)
    assert "1.2 GiB are free on the fullest of 2 GPUs beside 20 layers and 2 other open contexts: set" in text
    assert "max_batch, or close the other contexts" in text
    assert "auto" not in text


def test_a_context_that_leaves_too_little_is_refused(config: Config, leave: Callable[[int], None]) -> None:
    """Where layers were fitted to another context; the measured sizes are those that this one would take."""
    leave(2048)
    larger = config.changed(runtime=config.runtime.changed(n_ctx=1 << 14))
    with OpenModels() as models:
        model = open_model(config, models)
        Classifier.from_config(config, model=model).close()
        leave(255)
        words = (
            r"a context would leave 255 MiB of a GPU free, and decodes need 256; it takes 0\.02 GiB of cache and "
            r"states, 0\.\d\d GiB of compute buffers, and 0\.2 GiB are free on the GPU beside 3 layers that .* than 3,"
        )
        with pytest.raises(ModelError, match=words):
            Classifier.from_config(larger, model=model)
        leave(256)
        with Classifier.from_config(larger, model=model) as classifier:
            assert classifier.classify("red").labels


def test_what_answers_goes_on_where_another_is_refused(config: Config, leave: Callable[[int], None]) -> None:
    """On the same model, and on another one, as where a program opens another configuration."""
    leave(100)
    config = config.changed(runtime=config.runtime.changed(n_gpu_layers="all"))
    with Model.open(config.model, config.runtime) as model, Model.open(config.model, config.runtime) as other:
        with Classifier.from_config(config, model=model) as first:
            wanted = first.classify("red").labels
            for each in (model, other):
                why = r"leave 100 MiB of a GPU.* beside 3 layers and 1 other open context: set .* close the other"
                with pytest.raises(ModelError, match=why):
                    Classifier.from_config(config, model=each)
                assert first.classify("red").labels == wanted
            assert (len(model.native.contexts), len(other.native.contexts)) == (1, 0)
        for each in (model, other):
            Classifier.from_config(config, model=each).close()


NO_MEMORY = """
import resource, sys
from dataclasses import replace
from qcls_gguf import Classifier, Model, ModelError, load_config
from qcls_gguf.engine import open as engine_open
from qcls_gguf.model import open as model_open, placement
from qcls_gguf.native import Device

gpu = Device(kind="GPU", name="made up", free_bytes=3 << 30)
placement.gpus = model_open.gpus = engine_open.gpus = lambda: [gpu]
config = load_config(sys.argv[1])
with Model.open(config.model, config.runtime) as model, Classifier.from_config(config, model=model) as first:
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), resource.RLIM_INFINITY))
    try:
        Classifier.from_config(config.changed(runtime=config.runtime.changed(n_ctx=1 << 20)), model=model)
    except ModelError as e:
        print(e)
    print(first.classify("red").labels)
"""


def test_a_context_that_finds_no_memory(write_config: WriteConfig, run_python: RunPython) -> None:
    """The cache of the second would take 2 GiB, and the process may take 1 GiB more."""
    path = write_config("qwen3", [COLOUR], n_gpu_layers="all", kv_type="f32", try_model=False)
    done = run_python(NO_MEMORY, path)
    assert done.returncode == 0, done.stderr
    *lines, answer = done.stdout.splitlines()
    error = lines[-1]
    assert "could not make a context" in lines[0]
    assert "it takes 2.00 GiB of cache and states, 0." in error
    assert "3.0 GiB are free on the GPU beside 3 layers and 1 other open context: set runtime" in error
    assert "colour" in answer
