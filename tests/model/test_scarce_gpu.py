"""Several configurations on one model, where a GPU has little memory left beside its layers.

The GPU is made up: it says how much it has free, and llama.cpp computes on the CPU.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
from conftest import RunPython, WriteConfig
from oracle import PromptSpec

from qcls_gguf import Classifier, Config, Model, ModelError, OpenModels, load_config
from qcls_gguf.config.schema import RuntimeConfig
from qcls_gguf.engine import open as engine_open
from qcls_gguf.engine.memory import many_states, shortage_on_gpus
from qcls_gguf.engine.open import open_model
from qcls_gguf.model import open as model_open
from qcls_gguf.model import placement
from qcls_gguf.native import ContextMemory, Device

COLOUR = PromptSpec(name="colour", template="the colour of {query} is", labels=("red", "light blue"))
GIB = 1 << 30
TAKEN = ContextMemory(cache_bytes=GIB, compute_bytes=GIB // 2)


def test_what_is_said_where_memory_is_lacking() -> None:
    text = shortage_on_gpus(RuntimeConfig(), 30, TAKEN, [5 << 28], 0)
    assert text == (
        "it takes 1.00 GiB of cache and states, 0.50 GiB of compute buffers, and 1.2 GiB are free on the GPU beside "
        "30 layers that n_gpu_layers auto put there: set runtime.n_gpu_layers to less than 30, or lower "
        "runtime.max_query_tokens, question_cells or kept_queries"
    )
    text = shortage_on_gpus(RuntimeConfig(n_gpu_layers=20), 20, TAKEN, [7 << 28, 5 << 28], 2)
    assert "1.2 GiB are free on the fullest of 2 GPUs beside 20 layers and 2 other open contexts: set" in text
    assert "kept_queries, or close the other contexts" in text
    assert "auto" not in text
    assert many_states(1 << 19, 100) == ""
    assert "the states of 1,400 sequences take 0.7 GiB: if memory is lacking, lower runtime.max" in many_states(
        1 << 19, 1400
    )


@pytest.fixture
def config(write_config: WriteConfig) -> Config:
    return load_config(write_config("qwen3", [COLOUR], n_gpu_layers="auto", try_model=False))


@pytest.fixture
def leave(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Says how many MiB the GPU has free from now on."""

    def left(mib: int) -> None:
        gpu = Device(kind="GPU", name="made up", free_bytes=mib << 20, total_bytes=80 * GIB)
        for module in (placement, model_open, engine_open):
            monkeypatch.setattr(module, "gpus", lambda: [gpu])

    return left


def test_a_context_that_leaves_too_little_is_refused(config: Config, leave: Callable[[int], None]) -> None:
    """Where layers were fitted to another context; the measured sizes are those that this one would take."""
    leave(2048)
    larger = replace(config, runtime=replace(config.runtime, n_ctx=1 << 14))
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
    """On the same model, and on another one, as where a service reloads and the configuration has changed."""
    leave(100)
    config = replace(config, runtime=replace(config.runtime, n_gpu_layers="all"))
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

gpu = Device(kind="GPU", name="made up", free_bytes=3 << 30, total_bytes=80 << 30)
placement.gpus = model_open.gpus = engine_open.gpus = lambda: [gpu]
config = load_config(sys.argv[1])
with Model.open(config.model, config.runtime) as model, Classifier.from_config(config, model=model) as first:
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), resource.RLIM_INFINITY))
    try:
        Classifier.from_config(replace(config, runtime=replace(config.runtime, n_ctx=1 << 20)), model=model)
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
