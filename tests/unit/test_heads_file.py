"""Files of heads: written and read again, and whatever else is refused with its reason."""

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qcls_gguf import ConfigError
from qcls_gguf.config import fitted
from qcls_gguf.config.fitted import Calibration, Head, Heads, PromptCalibration, check_model, heads_content, read_heads
from qcls_gguf.config.prompt import PromptConfig
from qcls_gguf.config.schema import Config

N_EMBD, N_LAYER = 6, 4
PROMPT = PromptConfig(name="color", prompt_template="{query} color:", labels=("red", "blue", "none"))
RNG = np.random.default_rng(0)
HEAD = Head(
    depth=3, weight=RNG.normal(size=(N_EMBD, 3)).astype(np.float32), bias=np.arange(3, dtype=np.float32)
)  # fmt: skip


def written(folder: Path, head: Head = HEAD, prompt: PromptConfig = PROMPT) -> Config:
    path = folder / "heads.npz"
    path.write_bytes(heads_content("ab" * 32, N_LAYER, N_EMBD, {prompt.name: (prompt, head)}))
    return Config(prompts=(PROMPT,), heads=path)


def changed(folder: Path, change: Callable[[dict[str, Any], dict[str, Any]], None], save: Any = np.savez) -> Config:
    """The file after change(what it says, its arrays)."""
    config = written(folder)
    assert config.heads
    with np.load(config.heads) as file:
        arrays = dict(file)
    about = json.loads(arrays["about"].tobytes())
    change(about, arrays)
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    save(config.heads, **arrays)
    return config


@pytest.mark.parametrize(
    "head",
    [HEAD, replace(HEAD, depth=N_LAYER, scale=0.5), replace(HEAD, depth=1, text="Text: {query}")],
    ids=["own", "beside", "common"],
)
def test_round_trip(head: Head, tmp_path: Path) -> None:
    heads = read_heads(written(tmp_path, head), None)
    assert heads
    found = heads.prompts["color"]
    assert (heads.model_sha256, heads.n_layer, heads.n_embd) == ("ab" * 32, N_LAYER, N_EMBD)
    assert (found.depth, found.scale, found.text) == (head.depth, head.scale, head.text)
    assert found.digest == head.digest
    np.testing.assert_array_equal(found.weight, head.weight)
    np.testing.assert_array_equal(found.bias, head.bias)


def set_entry(key: str, value: Any) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    return lambda about, arrays: about["prompts"]["color"].update({key: value})


def set_array(name: str, value: Any) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    return lambda about, arrays: arrays.update({name: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda about, arrays: about.update(format=2), "format: 2 should be 1: run `qcls-gguf learn` again"),
        (lambda about, arrays: about.pop("model_sha256"), "model_sha256: is missing"),
        (lambda about, arrays: about.update(prompts=[]), "prompts: expected keys and values, got a list"),
        (lambda about, arrays: arrays.pop("weight0"), "damaged one: KeyError"),
        (set_array("weight0", HEAD.weight[:, :2]), "shapes"),
        (set_array("weight0", HEAD.weight.astype(np.float64)), "not finite float32"),
        (set_array("bias0", HEAD.bias[:2]), "shapes"),
        (set_array("weight0", HEAD.weight * np.float32(np.nan)), "not finite"),
        (set_entry("depth", 0), "color.depth: 0 should be"),
        (set_entry("depth", N_LAYER + 1), "depth 5"),
        (set_entry("depth", True), "color.depth: True should be"),
        (set_entry("scale", 0.5), "depth 3"),
        (set_entry("text", "no slot"), "without one slot"),
        (set_entry("text", "{query}"), "another text"),
        (set_entry("hash", "ab"), "other labels, or another text"),
    ],
)
def test_damaged_files_are_refused(change: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message) as e:
        read_heads(changed(tmp_path, change), None)
    assert str(e.value).startswith(f"heads: {tmp_path / 'heads.npz'}: ")


def test_what_is_no_file_of_heads_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "heads.npz"
    config = Config(prompts=(PROMPT,), heads=path)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_heads(config, None)
    pickled = io.BytesIO()
    with zipfile.ZipFile(pickled, "w") as archive:
        archive.writestr("about.npy", pickle.dumps([1]))
    objects = io.BytesIO()
    np.savez(objects, about=np.array([{}], object))
    half = heads_content("ab", N_LAYER, N_EMBD, {"color": (PROMPT, HEAD)})[:-40]
    for content in (b"", b"text", pickled.getvalue(), objects.getvalue(), half):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="is no file of heads"):
            read_heads(config, None)


def test_nothing_is_unpacked_to_more_than_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="it is compressed"):
        read_heads(changed(tmp_path, lambda about, arrays: None, np.savez_compressed), None)
    config = written(tmp_path)
    monkeypatch.setattr(fitted, "MOST_BYTES", 500)
    with pytest.raises(ConfigError, match="at most 500 are read"):
        read_heads(config, None)


def test_the_scoring_counts_beside_the_labels_texts_only(tmp_path: Path) -> None:
    other = (PROMPT.changed(scoring="joint"),)
    assert read_heads(written(tmp_path).changed(prompts=other), None)
    with pytest.raises(ConfigError, match="other labels"):
        read_heads(written(tmp_path, replace(HEAD, depth=N_LAYER, scale=0.5)).changed(prompts=other), None)


def test_a_calibration_of_the_same_prompt_is_refused(tmp_path: Path) -> None:
    fits = {"color": PromptCalibration(prompt_hash="", scoring="tree", temperature=2.0)}
    with pytest.raises(ConfigError, match="the calibration fits"):
        read_heads(written(tmp_path), Calibration(model_sha256="", prompts=fits))


def test_another_model_is_refused() -> None:
    config = Config(prompts=(PROMPT,), heads=Path("heads.npz"))
    heads = Heads(model_sha256="ab" * 32, n_layer=N_LAYER, n_embd=N_EMBD, prompts={})
    check_model(config, "ab" * 32, None, heads)
    heads.check_shape(N_LAYER, N_EMBD)
    with pytest.raises(ConfigError, match=r"heads\.npz was .* sha256 abababababab…, this one is cd.*gguf learn"):
        check_model(config, "cd" * 32, heads)
    with pytest.raises(ConfigError, match="this one has 4 and 8"):
        heads.check_shape(N_LAYER, 8)
