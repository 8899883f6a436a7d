"""Fixtures of the tests that need the compiled library: small random models, contexts, fresh interpreters."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
import yaml
from oracle import PromptSpec
from random_models import write_model

from qcls_gguf import Classifier, ModelError
from qcls_gguf.engine import prefix_file
from qcls_gguf.native import NativeContext, NativeModel, build_info, devices
from qcls_gguf.native.library import library_folder

pytest_plugins = ["hostile_rows"]

if TYPE_CHECKING:
    from served import Server

# How long an example takes depends on what else the machine does. Every run has the same examples, except where a
# test says otherwise.
hypothesis.settings.register_profile("untimed", deadline=None, derandomize=True)
hypothesis.settings.load_profile("untimed")

ROOT = Path(__file__).parents[1]
MakeModel = Callable[..., Path]
ModelSpec = Path | str | Mapping[str, Any]
"""A file, or what `make_model` makes one of: a name, or all options."""
OpenContext = Callable[..., NativeContext]
SIZES: dict[str, Any] = {"n_ctx": 256, "n_batch": 64, "n_seq_max": 8, "n_outputs_max": 64, "n_threads": 1}
WriteConfig = Callable[..., Path]
OpenClassifier = Callable[..., Classifier]
RunPython = Callable[..., "subprocess.CompletedProcess[str]"]


def sees_cuda_gpu() -> bool:
    """Whether this build computes on CUDA, and CUDA sees a GPU."""
    return build_info().is_cuda and any(device.kind == "GPU" for device in devices())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Before anything is compiled (`make fast`), what turns out to need the library is skipped."""
    try:
        yield
    except Exception as e:
        if "is not installed beside" in f"{e}{e.__cause__}":
            try:
                library_folder()
            except ModelError:
                pytest.skip("needs the compiled library")
        raise


@pytest.fixture(scope="session", autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the tests save is not the user's, and where Python is told to leave no bytecode beside its sources, the
    hundreds of commands that the tests start share what the first one compiled. On a GPU products of F32 matrices are
    not rounded to 10 bits (TF32)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NVIDIA_TF32_OVERRIDE", "0")
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        if os.environ.get("PYTHONDONTWRITEBYTECODE"):
            patch.delenv("PYTHONDONTWRITEBYTECODE")
            patch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path_factory.mktemp("bytecode")))
        yield


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> MakeModel:
    """`write_model(name, **options)` into a folder of the session; equal calls give one file."""
    folder = tmp_path_factory.mktemp("models")
    paths: dict[str, Path] = {}

    def make(name: str = "qwen3", **options: Any) -> Path:
        key = "-".join([name, *(f"{option}={value}" for option, value in sorted(options.items()))])
        if key not in paths:
            # a chat template makes the key longer than a file's name may be
            file = key if len(key) < 200 and "/" not in key else f"{name}-{len(paths)}"
            paths[key] = write_model(folder / f"{file}.gguf", name, **options)
        return paths[key]

    return make


@pytest.fixture(scope="session")
def model_path(make_model: MakeModel) -> Callable[[ModelSpec], Path]:
    """The file of a model."""

    def find(model: ModelSpec) -> Path:
        options = {"name": model} if isinstance(model, str) else model
        return options if isinstance(options, Path) else make_model(**options)

    return find


@pytest.fixture
def model_file(make_model: MakeModel, tmp_path: Path) -> Path:
    """A copy of the small model, for tests that change the file."""
    return Path(shutil.copy(make_model(), tmp_path / "model.gguf"))


@pytest.fixture(scope="session")
def model(make_model: MakeModel) -> Iterator[NativeModel]:
    """A small qwen3 with F32 weights."""
    with NativeModel(make_model()) as model:
        yield model


@pytest.fixture
def open_context(model_path: Callable[[ModelSpec], Path]) -> Iterator[OpenContext]:
    """Opens small contexts, hidden states only unless told otherwise, and closes them after the test.

    On a model, or on one that is then loaded once, on the CPU unless told otherwise.
    """
    with ExitStack() as stack:

        @cache
        def loaded(path: Path, **placed: Any) -> NativeModel:
            return stack.enter_context(NativeModel(path, **placed))

        def open_one(model: NativeModel | ModelSpec, **options: Any) -> NativeContext:
            placed = {key: options.pop(key) for key in ("n_gpu_layers", "share", "without_weights") if key in options}
            native = model if isinstance(model, NativeModel) else loaded(model_path(model), **placed)
            return stack.enter_context(NativeContext(native, **{**SIZES, **options}))

        yield open_one


@pytest.fixture
def context(model: NativeModel, open_context: OpenContext) -> NativeContext:
    """One of the small model."""
    return open_context(model)


@pytest.fixture
def write_config(model_path: Callable[[ModelSpec], Path], tmp_path: Path) -> WriteConfig:
    """Writes the configuration of a model and some prompts, with runtime settings as keywords; for the CPU, unless
    `n_gpu_layers` says otherwise."""

    def write(model: ModelSpec, prompts: Sequence[PromptSpec], **runtime: Any) -> Path:
        tree = {
            "model": {"path": str(model_path(model))},
            "runtime": {"n_threads": 1, "n_gpu_layers": 0, "max_query_tokens": 64, **runtime},
            "prompts": [prompt.settings() for prompt in prompts],
        }
        path = tmp_path / f"config-{len(list(tmp_path.iterdir()))}.yaml"
        path.write_text(yaml.safe_dump(tree, allow_unicode=True), encoding="utf-8")
        return path

    return write


@pytest.fixture
def open_classifier(write_config: WriteConfig) -> Iterator[OpenClassifier]:
    """Opens a classifier on what `write_config` takes, and closes it after the test."""
    with ExitStack() as stack:

        def open_one(model: ModelSpec, prompts: Sequence[PromptSpec], **runtime: Any) -> Classifier:
            return stack.enter_context(Classifier.from_config(write_config(model, prompts, **runtime)))

        yield open_one


@pytest.fixture
def prefix_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which cells of prefixes are saved, however fast they are computed; this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(prefix_file, "WORTH_MS", 0.0)
    return tmp_path / "cache" / "qcls-gguf" / "prefixes"


@pytest.fixture
def interruptible() -> Iterator[None]:
    """What the test starts can be interrupted. A script's background job is started with SIGINT ignored, and hands that
    on to its children; a handler is not handed on, and leaves them the default."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def run_python() -> RunPython:
    """Runs code in a fresh interpreter, where an abort or a hang fails one test only; `args` are its sys.argv[1:]."""

    def run(code: str, *args: object, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-X", "faulthandler", "-c", code, *map(str, args)]
        environment = {**os.environ, "GGML_NO_BACKTRACE": "1"}  # an abort would start a debugger
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, env=environment)

    return run


@pytest.fixture(scope="session")
def classifier() -> Iterator[Classifier]:
    """One of configs/mission.yaml, where a test's file has none of its own."""
    with Classifier.from_config("mission") as opened:
        yield opened


@pytest.fixture(scope="session")
def server() -> Iterator["Server"]:
    """A service with the two prompts of configs/mission.yaml, for tests that neither stop nor change it."""
    from served import Server  # tests of other rooms have no use for an HTTP client

    with Server() as running:
        yield running


@pytest.fixture(scope="session")
def locked() -> Iterator["Server"]:
    """A service that answers whoever has one of two keys; small limits."""
    from served import Server

    with Server("--api-key", "first", "--api-key", "second", "--max-body", "4096", "--max-queries", "3") as running:
        yield running
