"""Files of what was fitted: calibrations and heads."""

import io
import json
import pickle
import re
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from cases import cases, written
from config_texts import FOLDER, parse

from qcls_gguf import Config, ConfigError, PromptConfig, load_config
from qcls_gguf.config import fitted
from qcls_gguf.config.fitted import Calibration, Head, Heads, PromptCalibration, read_calibration, read_heads
from qcls_gguf.statistics.logistic import N_WORDS

PROMPT = """\
prompts:
  - name: category
    prompt_template: "query: {query} label:"
    labels: [dress, "no", 孕]
"""
SECOND = """\
  - name: audience
    prompt_template: "{query}:"
    labels: [girl, boy]
"""
SHA256 = "ab" * 32


def test_a_prompts_settings_go_before_the_common_ones() -> None:
    common = ("prior: content_free", "min_confidence: 1", "fallback: ask", "content_free_queries: ['']", "label_end: A")
    lines = ("prior: none", "min_confidence: 0.25", "temperature: 2", "content_free_queries: [x, '']", "label_end: B")
    top, own = "\n".join(["calibration: c.yaml", *common, ""]), "".join(f"    {line}\n" for line in lines)
    first, second = parse(top + PROMPT + own + SECOND).prompts
    assert (first.prior, first.min_confidence, first.fallback, first.temperature) == ("none", 0.25, "ask", 2.0)
    assert (first.content_free_queries, first.label_end, second.label_end) == (("x", ""), "B", "A")
    assert (second.prior, second.min_confidence, second.temperature) == ("content_free", 1.0, None)
    assert (second.content_free_queries, parse(top + PROMPT).calibration) == (("",), FOLDER / "c.yaml")


@cases(
    ({"prompt_template": "{query}"}, False),
    ({"label_prefix": ""}, False),
    ({"label_end": "."}, False),
    ({"labels": ("dress", "other")}, False),
    ({"scoring": "joint"}, False),
    ({"prior": "content_free", "content_free_queries": ("",)}, False),
    ({"content_free_queries": ("",)}, True),  # no prior is computed from them
    ({"temperature": 2.0}, True),
)
def test_the_hash_of_a_prompt_is_of_what_its_scores_depend_on(change: dict[str, Any], same: bool) -> None:
    prompt = parse(PROMPT).prompts[0]
    assert (fitted.prompt_hash(prompt.changed(**change)) == fitted.prompt_hash(prompt)) is same


def entry(prompt: PromptConfig, **more: Any) -> PromptCalibration:
    return PromptCalibration(prompt_hash=fitted.prompt_hash(prompt), scoring=prompt.scoring, temperature=1.5, **more)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "config.yaml").write_text(f"calibration: c.yaml\n{PROMPT}{SECOND}", encoding="utf-8")
    return load_config(tmp_path / "config.yaml")


def calibrated(config: Config, prompts: dict[str, PromptCalibration]) -> Calibration | None:
    assert config.calibration is not None
    config.calibration.write_text(fitted.calibration_text(SHA256, prompts), encoding="utf-8")
    return read_calibration(config)


def test_what_is_written_is_read(config: Config) -> None:
    """Of a subset of the prompts, with labels that YAML would take for something else."""
    fit = entry(config.prompts[0], bias={"dress": 0.5, "no": -0.75, "孕": 0.25})
    found = calibrated(config, {"category": fit})
    assert found is not None
    assert (found.prompts, fit.biases(config.prompts[0].labels)) == ({"category": fit}, [0.5, -0.75, 0.25])
    fitted.check_model(config, SHA256, found)
    with pytest.raises(ConfigError, match=r"c\.yaml .* sha256 abababababab…, this one is cdcd.*calibrate"):
        fitted.check_model(config, "cd" * 32, found)
    assert read_calibration(config.changed(calibration=None)) is None


@cases(
    ("nothing", "expected keys and values, got nothing"),
    ("another prompt", "prompts.categorie: is no prompt of the configuration, which has category, audience"),
    ({"temperature": float("inf")}, "prompts.category.temperature: inf should be less than or equal to 100"),
    ({"prompt_hash": "cd" * 32}, "prompts.category: was fitted to the prompt of hash cdcdcdcdcdcd…, it is "),
    ({"bias": {"dress": 1, "no": 2}}, "prompts.category: its bias has other labels than the prompt: run"),
)
def test_a_wrong_calibration_is_refused(change: str | dict[str, Any], message: str, config: Config) -> None:
    known, text = entry(config.prompts[0]), ""
    if change != "nothing":
        name = "categorie" if isinstance(change, str) else "category"
        tree = yaml.safe_load(fitted.calibration_text(SHA256, {name: known}))
        tree["prompts"][name] |= {} if isinstance(change, str) else change
        text = yaml.safe_dump(tree)
    assert config.calibration is not None
    config.calibration.write_text(text, encoding="utf-8")
    place = re.escape(f"calibration: {config.calibration}: ")
    with pytest.raises(ConfigError, match=rf"{place}(line \d+: )?{re.escape(message)}"):
        read_calibration(config)


def test_a_fit_and_a_temperature_of_ones_own_are_a_contradiction(config: Config) -> None:
    first, second = config.prompts
    own = config.changed(prompts=(first.changed(temperature=1.0), second))
    with pytest.raises(ConfigError, match=r"prompts\.category: the configuration gives this prompt temperature 1"):
        calibrated(own, {"category": entry(first)})
    assert calibrated(own, {"audience": entry(second)}) is not None


N_EMBD, N_LAYER = 6, 4
HEADED = PromptConfig(name="color", prompt_template="{query} color:", labels=("red", "blue", "none"))
WEIGHT = np.random.default_rng(0).normal(size=(N_EMBD, 3)).astype(np.float32)
HEAD = Head(depth=3, weight=WEIGHT, bias=np.arange(3, dtype=np.float32))


def written_heads(folder: Path, head: Head = HEAD) -> Config:
    content = fitted.heads_content(SHA256, N_LAYER, N_EMBD, {HEADED.name: (HEADED, head)})
    return Config(prompts=(HEADED,), heads=written(folder / "heads.npz", content))


def changed(folder: Path, change: Callable[[dict[str, Any], dict[str, Any]], None], save: Any = np.savez) -> Config:
    """The file after change(what it says, its arrays)."""
    config = written_heads(folder)
    assert config.heads
    with np.load(config.heads) as file:
        arrays = dict(file)
    about = json.loads(arrays["about"].tobytes())
    change(about, arrays)
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    save(config.heads, **arrays)
    return config


@cases(
    HEAD,
    replace(HEAD, depth=N_LAYER, scale=0.5),
    replace(HEAD, depth=1, text="Text: {query}"),
    replace(HEAD, words=np.ones((N_WORDS, 3), np.float32)),
)
def test_round_trip(head: Head, tmp_path: Path) -> None:
    heads = read_heads(written_heads(tmp_path, head), None)
    assert heads
    found = heads.prompts["color"]
    assert (heads.model_sha256, heads.n_layer, heads.n_embd) == ("ab" * 32, N_LAYER, N_EMBD)
    assert (found.depth, found.scale, found.text) == (head.depth, head.scale, head.text)
    assert found.digest == head.digest
    np.testing.assert_array_equal(found.weight, head.weight)
    np.testing.assert_array_equal(found.bias, head.bias)
    np.testing.assert_array_equal(found.words, head.words)
    assert (found.digest == HEAD.digest) == (head is HEAD)


def set_entry(key: str, value: Any) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    return lambda about, arrays: about["prompts"]["color"].update({key: value})


def set_array(name: str, value: Any) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    return lambda about, arrays: arrays.update({name: value})


@cases(
    (lambda about, arrays: about.update(format=3), "format: 3 should be 1 or 2: run `qcls-gguf learn` again"),
    *(
        (lambda about, _, name=name: about.pop(name), f"{name}: is missing")
        for name in ("model_sha256", "format", "package_version")
    ),
    (lambda about, arrays: about.update(prompts=[]), "prompts: expected keys and values, got a list"),
    (lambda about, arrays: arrays.pop("weight0"), "damaged one: KeyError"),
    (lambda about, arrays: about.update(queries="abc"), "damaged one: Error"),
    (set_array("weight0", HEAD.weight[:, :2]), r"weight of float32 \(6, 2\): finite"),
    (set_array("weight0", HEAD.weight.astype(np.float64)), "weight of float64"),
    (set_array("bias0", HEAD.bias[:2]), "bias of float32"),
    (set_array("words0", HEAD.weight), r"words of float32 \(6, 3\)"),
    (set_array("weight0", HEAD.weight * np.float32(np.nan)), "weight of float32"),
    (set_entry("depth", 0), "color.depth: 0 should be"),
    (set_entry("depth", N_LAYER + 1), "depth 5"),
    (set_entry("depth", True), "color.depth: True should be"),
    (set_entry("scale", 0.5), "depth 3"),
    (set_entry("text", "no slot"), "without one slot"),
    (set_entry("text", "{query}"), "another text"),
    (set_entry("hash", "ab"), "other labels, or another text"),
)
def test_damaged_files_are_refused(change: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message) as e:
        read_heads(changed(tmp_path, change), None)
    assert str(e.value).startswith(f"heads: {tmp_path / 'heads.npz'}: ")


def test_what_is_no_file_of_heads_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "heads.npz"
    config = Config(prompts=(HEADED,), heads=path)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_heads(config, None)
    pickled = io.BytesIO()
    with zipfile.ZipFile(pickled, "w") as archive:
        archive.writestr("about.npy", pickle.dumps([1]))
    objects = io.BytesIO()
    np.savez(objects, about=np.array([{}], object))
    half = fitted.heads_content("ab", N_LAYER, N_EMBD, {"color": (HEADED, HEAD)})[:-40]
    for content in (b"", b"text", pickled.getvalue(), objects.getvalue(), half):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="is no file of heads"):
            read_heads(config, None)


def test_nothing_is_unpacked_to_more_than_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="it is compressed"):
        read_heads(changed(tmp_path, lambda about, arrays: None, np.savez_compressed), None)
    monkeypatch.setattr(fitted, "MOST_BYTES", 500)
    with pytest.raises(ConfigError, match="at most 500 are read"):
        read_heads(written_heads(tmp_path), None)


def test_the_scoring_counts_beside_the_labels_texts_only(tmp_path: Path) -> None:
    other = (HEADED.changed(scoring="joint"),)
    assert read_heads(written_heads(tmp_path).changed(prompts=other), None)
    with pytest.raises(ConfigError, match="other labels"):
        read_heads(written_heads(tmp_path, replace(HEAD, depth=N_LAYER, scale=0.5)).changed(prompts=other), None)


def test_a_calibration_of_the_same_prompt_is_refused(tmp_path: Path) -> None:
    fits = {"color": PromptCalibration(prompt_hash="", scoring="tree", temperature=2.0)}
    with pytest.raises(ConfigError, match="the calibration fits"):
        read_heads(written_heads(tmp_path), Calibration(model_sha256="", prompts=fits))


def test_another_model_is_refused() -> None:
    config = Config(prompts=(HEADED,), heads=Path("heads.npz"))
    heads = Heads(model_sha256="ab" * 32, n_layer=N_LAYER, n_embd=N_EMBD, prompts={})
    fitted.check_model(config, "ab" * 32, None, heads)
    heads.check_shape(N_LAYER, N_EMBD)
    with pytest.raises(ConfigError, match=r"heads\.npz was .* sha256 abababababab…, this one is cd.*gguf learn"):
        fitted.check_model(config, "cd" * 32, heads)
    with pytest.raises(ConfigError, match="this one has 4 and 8"):
        heads.check_shape(N_LAYER, 8)
