"""A model file that is not known to work is tried in a process of its own.

Model files that are damaged, which is an error and never a label, and models in several files.
"""

import json
import math
import os
import re
from pathlib import Path

import pytest
from cases import cases, written
from conftest import MakeModel, OpenClassifier, RunPython, WriteConfig
from gguf_parts import File, filled, put_together, take_apart, with_nan_embedding
from oracle import COLOR

from qcls_gguf import Classifier, ConfigError, Model, ModelConfig, ModelError, RuntimeConfig, ScoreError
from qcls_gguf.config import resources
from qcls_gguf.config.resources import embedded_model
from qcls_gguf.model import ModelFile, trial
from qcls_gguf.model.placement import ON_CPU, Placement
from qcls_gguf.model.trial import try_model
from qcls_gguf.system.lifetimes import Ledger

PROMPTS = [COLOR]
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
    return written(tmp_path / "deadly.gguf", put_together(file))


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


def test_another_model_needs_no_package(model_file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "EMBEDDED_MODEL", "deleted.gguf")
    with pytest.raises(ModelError, match=r"embedded model .*deleted\.gguf is missing"):
        embedded_model()
    assert tried(model_file)


def test_it_can_be_left_out(model_file: Path, cache: Path, write_config: WriteConfig) -> None:
    with Classifier.from_config(write_config(model_file, PROMPTS, try_model=False)) as classifier:
        assert "try model" not in classifier.startup_ms
    assert not cache.exists()
    with Classifier.from_config(write_config(model_file, PROMPTS)) as classifier:
        assert "try model" in classifier.startup_ms


def test_a_file_that_kills_is_an_error(deadly: Path, write_config: WriteConfig, run_python: RunPython) -> None:
    for _ in range(2):  # it is not remembered as one that works
        with pytest.raises(ModelError, match=r"deadly\.gguf: llama\.cpp ends the process on it \(signal "):
            Classifier.from_config(write_config(deadly, PROMPTS))
    code = "import sys; from qcls_gguf import Classifier; Classifier.from_config(sys.argv[1])"
    assert run_python(code, write_config(deadly, PROMPTS, try_model=False)).returncode < 0, "the file is sound by now"


def test_an_architecture_from_the_future(model_file: Path) -> None:
    model_file.write_bytes(model_file.read_bytes().replace(b"qwen3", b"qwen9"))
    said = r"model\.gguf: this version's llama\.cpp does not know the architecture 'qwen9'"
    with pytest.raises(ModelError, match=said):
        tried(model_file)


CHECK_FAILS = "echo '/a/b.cpp:7: GGML_ASSERT(\033[2J) failed' >&2; kill -SEGV $$"


@cases(
    ("kill -ABRT $$", r"llama\.cpp ends the process on it \(signal 6\): it said nothing"),
    (CHECK_FAILS, r"\(signal 11\): a check of its own fails \(\\x1b\[2J\); the"),
    ("kill -KILL $$", r"killed, as the system does where memory is lacking: the model has 0\.00 GiB"),
    ("sleep 60", r"did not load it and decode within 0 s"),
    ("echo wrong shape; exit 3", "wrong shape$"),
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


WEIGHTS = ("output_norm.weight", "blk.1.attn_v.weight", "token_embd.weight", "output.weight")


@cases(
    *(("F32", name, value) for name in WEIGHTS for value in (math.nan, math.inf)),
    # the scales of a whole matrix, so that all activations that the next one quantises are NaN; a Q6_K product on a
    # CPU takes such activations for zeros
    *((weight_type, "blk.1.attn_v.weight", 255) for weight_type in ("Q4_K", "Q8_0")),
)
def test_weights_and_scales_that_are_not_finite(
    weight_type: str, name: str, value: float, make_model: MakeModel, write_config: WriteConfig, tmp_path: Path
) -> None:
    source = make_model() if weight_type == "F32" else make_model(weight_type=weight_type, n_embd=512, n_ff=512)
    path = filled(source, tmp_path / "nan.gguf", name, value)
    with pytest.raises(ModelError, match=f"^{re.escape(str(path))}.*not finite"):
        Classifier.from_config(write_config(path, PROMPTS))


@pytest.mark.parametrize("flash_attn", [True, False], ids=["flash", "plain"])
def test_a_bad_token_harms_no_other_query(
    flash_attn: bool, make_model: MakeModel, open_classifier: OpenClassifier, tmp_path: Path
) -> None:
    """The embedding of `~` is not a number: its cells must not reach the next request, masked as they are."""
    good = open_classifier(make_model(), PROMPTS, flash_attn=flash_attn)
    path = with_nan_embedding(make_model(), "~", tmp_path / "nan.gguf")
    classifier = open_classifier(path, PROMPTS, flash_attn=flash_attn, max_batch=2)
    wanted = good.classify("red dress").results
    for queries in (["~~~"], ["red dress", "~"], ["~" * 40, ""]):
        with pytest.raises(ScoreError, match="not finite"):
            classifier.classify_batch(queries)
        assert classifier.classify("red dress").results == wanted


UINT16, INT32 = 2, 5


@pytest.fixture
def parts(make_model: MakeModel, tmp_path: Path) -> tuple[Path, Path]:
    return write_parts(tmp_path, make_model(), make_model())


def write_parts(folder: Path, first: Path, second: Path) -> tuple[Path, Path]:
    """Two files of a model; the second has the last layer and the head of another model of the same shape."""
    whole, other = take_apart(first), take_apart(second)
    last = (b"blk.1.", b"output")
    kept = [tensor for tensor in whole.tensors if not tensor.name.startswith(last)]
    tensors = kept, [tensor for tensor in other.tensors if tensor.name.startswith(last)]
    paths = folder / "m-00001-of-00002.gguf", folder / "m-00002-of-00002.gguf"
    for number, (path, held) in enumerate(zip(paths, tensors, strict=True)):
        split = (b"split.no", UINT16, number), (b"split.count", UINT16, 2)
        keys = [*([] if number else whole.keys), *split, (b"split.tensors.count", INT32, len(whole.tensors))]
        path.write_bytes(put_together(File(keys=keys, tensors=held)))
    assert any(tensor.name == b"output.weight" for tensor in tensors[1])
    return paths


def test_a_split_model_answers_as_the_whole_one(parts: tuple[Path, Path], open_classifier: OpenClassifier) -> None:
    whole, split = (open_classifier(model, PROMPTS) for model in ("qwen3", parts[0]))
    assert split.classify("red dress").results == whole.classify("red dress").results
    assert split.engine.model.file.tensors.keys() == whole.engine.model.file.tensors.keys()


def test_every_parts_layers_are_checked(make_model: MakeModel, open_classifier: OpenClassifier, tmp_path: Path) -> None:
    shape = {"n_embd": 256, "n_ff": 512}
    first, _ = write_parts(tmp_path, make_model(weight_type="Q8_0", **shape), make_model(**shape))
    with pytest.raises(ConfigError, match=r"batch_invariant: tensor 'blk\.1\.\w+\.weight' is F32"):
        open_classifier(first, PROMPTS, batch_invariant=True)


def test_the_part_with_the_head_is_gone(parts: tuple[Path, Path]) -> None:
    with Model.open(ModelConfig(path=parts[0]), RuntimeConfig(n_gpu_layers=0, try_model=False)) as model:
        parts[1].unlink()
        with pytest.raises(ModelError, match=r"m-00002-of-00002\.gguf cannot be read .* when the model was opened"):
            model.output_rows.of([1])
