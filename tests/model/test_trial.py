"""A model file that is not known to work is tried in a process of its own."""

import json
import os
from pathlib import Path

import pytest
from conftest import MakeModel, RunPython, WriteConfig
from gguf_parts import put_together, take_apart
from oracle import PromptSpec

from qcls_gguf import Classifier
from qcls_gguf.config import resources
from qcls_gguf.config.resources import embedded_model
from qcls_gguf.config.schema import RuntimeConfig
from qcls_gguf.errors import ModelError
from qcls_gguf.model import trial
from qcls_gguf.model.files import ModelFile
from qcls_gguf.model.placement import ON_CPU, Placement
from qcls_gguf.model.trial import try_model
from qcls_gguf.system.lifetimes import Ledger

PROMPT = PromptSpec(name="a", template="the colour of {query} is", labels=("red", "light blue", "light pink"))
CPU = RuntimeConfig()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that remembers what worked, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "qcls-gguf"


@pytest.fixture
def deadly(make_model: MakeModel, tmp_path: Path) -> Path:
    """A sound file by every rule, on which llama.cpp ends the process: it computes with a tensor that is not there."""
    file = take_apart(make_model("longrope"))
    file.tensors = [tensor for tensor in file.tensors if tensor.name != b"blk.1.attn_k.weight"]
    path = tmp_path / "deadly.gguf"
    path.write_bytes(put_together(file))
    return path


def tried(path: Path, runtime: RuntimeConfig = CPU, placed: Placement = ON_CPU) -> bool:
    ledger = Ledger()
    try_model(ModelFile.read(path), placed, runtime, ledger)
    return "try model" in ledger.steps_ms


def test_a_file_is_tried_once(model_file: Path, cache: Path) -> None:
    assert tried(model_file)
    assert not tried(model_file)
    assert tried(model_file, RuntimeConfig(kv_type="f32")), "another way to compute"
    for gpu_layers in ((1,), (1, 1)):
        assert tried(model_file, placed=Placement(gpu_layers)), "other devices"
    os.utime(model_file)
    assert tried(model_file), "another file under this name"
    assert len(json.loads((cache / "tried.json").read_bytes())) == 5


def test_a_damaged_memory_is_none(model_file: Path, cache: Path) -> None:
    assert tried(model_file)
    for content in (b"", b"[1, null]", b'{"a": 1}'):
        (cache / "tried.json").write_bytes(content)
        assert tried(model_file)


def test_another_model_needs_none_of_the_package(
    model_file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "EMBEDDED_MODEL", "deleted.gguf")
    with pytest.raises(ModelError, match=r"embedded model .*deleted\.gguf is missing"):
        embedded_model()
    assert tried(model_file)


def test_it_can_be_left_out(model_file: Path, cache: Path, write_config: WriteConfig) -> None:
    with Classifier.from_config(write_config(model_file, [PROMPT], try_model=False)) as classifier:
        assert "try model" not in classifier.startup_ms
    assert not cache.exists()
    with Classifier.from_config(write_config(model_file, [PROMPT])) as classifier:
        assert "try model" in classifier.startup_ms


def test_a_file_that_ends_the_process_is_an_error(
    deadly: Path, write_config: WriteConfig, run_python: RunPython
) -> None:
    for _ in range(2):  # it is not remembered as one that works
        with pytest.raises(ModelError, match=r"deadly\.gguf: llama\.cpp ends the process on it \(signal "):
            Classifier.from_config(write_config(deadly, [PROMPT]))
    code = "import sys; from qcls_gguf import Classifier; Classifier.from_config(sys.argv[1])"
    assert run_python(code, write_config(deadly, [PROMPT], try_model=False)).returncode < 0, "the file is sound by now"


def test_an_architecture_from_the_future(model_file: Path) -> None:
    model_file.write_bytes(model_file.read_bytes().replace(b"qwen3", b"qwen9"))
    with pytest.raises(
        ModelError, match=r"model\.gguf: this version's llama\.cpp does not know the architecture 'qwen9'"
    ):
        tried(model_file)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("kill -ABRT $$", r"llama\.cpp ends the process on it \(signal 6\): it said nothing"),
        (
            "echo '/a/b.cpp:7: GGML_ASSERT(\033[2J) failed' >&2; kill -SEGV $$",
            r"\(signal 11\): a check of its own fails \(\\x1b\[2J\); the",
        ),
        ("kill -KILL $$", r"killed, as the system does where memory is lacking: the model has 0\.00 GiB"),
        ("sleep 60", r"did not load it and decode within 0 s"),
        ("echo wrong shape; exit 3", "wrong shape$"),
    ],
)
def test_how_a_trial_may_end(
    program: str, said: str, model_file: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program in place of the real one, which ends as that one may."""
    _replace(program, tmp_path, monkeypatch)
    monkeypatch.setattr(trial, "_LEAST_S", 0.2 if "sleep" in program else 60.0)
    with pytest.raises(ModelError, match=said) as caught:
        tried(model_file)
    assert str(caught.value).startswith(f"{model_file}: ")
    assert str(caught.value).isprintable()
    assert not cache.exists()


@pytest.mark.parametrize("program", ["echo libllama.so is missing >&2; exit 127", None])
def test_a_program_that_cannot_run_is_a_warning(
    program: str | None, model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _replace(program, tmp_path, monkeypatch)
    with pytest.warns(UserWarning, match=r"model\.gguf is loaded untried: .*did not run: (libllama|No such file)"):
        assert not tried(model_file)


def _replace(program: str | None, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "qcls-trial"
    if program is not None:
        path.write_text(f"#!/bin/sh\n{program}\n")
        path.chmod(0o755)
    monkeypatch.setattr(trial, "library_folder", lambda: folder)
