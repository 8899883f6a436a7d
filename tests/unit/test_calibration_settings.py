"""What a configuration says of calibration, and the file that it may name: what loads, and every refusal's words."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from config_texts import FOLDER, parse, refused

from qcls_gguf.config.calibration_file import (
    Calibration,
    PromptCalibration,
    calibration_text,
    prompt_hash,
    read_calibration,
)
from qcls_gguf.config.load import load_config
from qcls_gguf.config.prompt import PromptConfig
from qcls_gguf.config.schema import Config
from qcls_gguf.errors import ConfigError

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
WHOLE = {"prompt_hash": SHA256, "scoring": "tree", "temperature": 1.5}


def test_nothing_is_calibrated_by_default() -> None:
    config = parse(PROMPT)
    assert config.calibration is None
    prompt = config.prompts[0]
    assert (prompt.prior, prompt.content_free_queries) == ("none", ("", "N/A", "[MASK]"))
    assert (prompt.temperature, prompt.min_confidence, prompt.fallback) == (None, None, None)


def test_a_prompts_settings_go_before_the_common_ones() -> None:
    top = "calibration: c.yaml\nprior: content_free\nmin_confidence: 1\nfallback: ask\ncontent_free_queries: ['']\n"
    lines = ("prior: none", "min_confidence: 0.25", "temperature: 2", "content_free_queries: [x, '']")
    own = "".join(f"    {line}\n" for line in lines)
    first, second = parse(top + PROMPT + own + SECOND).prompts
    assert (first.prior, first.min_confidence, first.fallback, first.temperature) == ("none", 0.25, "ask", 2.0)
    assert first.content_free_queries == ("x", "")
    assert (second.prior, second.min_confidence, second.temperature) == ("content_free", 1.0, None)
    assert second.content_free_queries == ("",)
    assert parse(top + PROMPT).calibration == FOLDER / "c.yaml"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("prior: free", "prompts.category.prior: 'free' should be 'none' or 'content_free'"),
        ("content_free_queries: []", "prompts.category.content_free_queries: [] should have at least 1 item, not 0"),
        ("content_free_queries: [a, a]", "prompts.category.content_free_queries[1]: query 'a' is given twice"),
        ("temperature: 0", "prompts.category.temperature: 0 should be greater than or equal to 0.01"),
        ("temperature: .nan", "prompts.category.temperature: nan should be less than or equal to 100"),
        ("min_confidence: 0.5", "prompts.category.min_confidence: 0.5 needs fallback: give both or neither"),
        ('fallback: ""', "prompts.category.fallback: is empty"),
        ("min_confidence: 0", "prompts.category.min_confidence: 0 should be greater than 0"),
    ],
)
def test_a_wrong_setting_is_refused(line: str, message: str) -> None:
    refused(f"{PROMPT}    {line}\n", message)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("temperature: 2", "temperature: unknown key"),
        ("calibration: ~nobody-here/c.yaml", "calibration: ~nobody-here/c.yaml: "),
    ],
)
def test_a_wrong_common_setting_is_refused(line: str, message: str) -> None:
    refused(f"{line}\n{PROMPT}", message)


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"prompt_template": "{query}"}, False),
        ({"label_prefix": ""}, False),
        ({"labels": ("no", "dress", "孕")}, False),
        ({"scoring": "joint"}, False),
        ({"label_end": "<|im_end|>"}, False),
        ({"prior": "content_free", "content_free_queries": ("",)}, False),
        ({"content_free_queries": ("",)}, True),  # no prior is computed from them
        ({"name": "kind"}, True),
        ({"temperature": 2.0}, True),
        ({"min_confidence": 0.5, "fallback": "ask"}, True),
    ],
)
def test_the_hash_of_a_prompt_is_of_what_its_scores_depend_on(change: dict[str, Any], same: bool) -> None:
    prompt = parse(PROMPT).prompts[0]
    assert (prompt_hash(replace(prompt, **change)) == prompt_hash(prompt)) is same


def entry(prompt: PromptConfig, **more: Any) -> dict[str, Any]:
    return {"prompt_hash": prompt_hash(prompt), "scoring": prompt.scoring, "temperature": 1.5, **more, "fit": {}}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "config.yaml").write_text(f"calibration: c.yaml\n{PROMPT}{SECOND}", encoding="utf-8")
    return load_config(tmp_path / "config.yaml")


def written(config: Config, prompts: dict[str, dict[str, Any]]) -> Calibration | None:
    assert config.calibration is not None
    config.calibration.write_text(calibration_text(SHA256, prompts), encoding="utf-8")
    return read_calibration(config)


def test_what_is_written_is_read(config: Config) -> None:
    """Of a subset of the prompts, with labels that YAML would take for something else."""
    bias = {"dress": 0.5, "no": -0.75, "孕": 0.25}
    found = written(config, {"category": entry(config.prompts[0], bias=bias)})
    assert found is not None
    assert found.prompts == {"category": PromptCalibration(temperature=1.5, bias=(0.5, -0.75, 0.25))}
    found.check_model(SHA256)
    with pytest.raises(ConfigError, match=r"c\.yaml .* sha256 abababababab…, this one is cdcd.*calibrate"):
        found.check_model("cd" * 32)
    assert read_calibration(replace(config, calibration=None)) is None


def test_a_file_that_cannot_be_read_is_refused(config: Config, tmp_path: Path) -> None:
    for content, message in (
        (None, "the file cannot be read: No such file"),
        (b"\xff", "the file is not valid UTF-8 at byte 0"),
    ):
        if content is not None:
            (tmp_path / "c.yaml").write_bytes(content)
        with pytest.raises(ConfigError, match=rf"calibration: .*c\.yaml: {message}"):
            read_calibration(config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("", "is no calibration"),
        ({"model_sha256": None}, "model_sha256: is nothing"),
        ({"prompts": {}}, "prompts: {} should have at least 1 item, not 0"),
        ({"model_sha": 1}, "model_sha: unknown key, did you mean model_sha256?"),
        ({"categorie": WHOLE}, "prompts.categorie: is no prompt of the configuration, which has category, audience"),
        ({"temperature": float("inf")}, "prompts.category.temperature: inf should be less than or equal to 100"),
        ({"prompt_hash": "cd" * 32}, "prompts.category: was fitted to the prompt of hash cdcdcdcdcdcd…, it is "),
        ({"bias": [1]}, "prompts.category.bias: expected keys and values, got a list"),
        (
            {"bias": {"dress": 1, "no": 2}},
            "prompts.category: its bias has other labels than the prompt: run `qcls-gguf",
        ),
        (
            {"bias": {"dress": 1, "no": float("nan"), "孕": 3}},
            "prompts.category.bias.no: nan should be less than or equal to 1000",
        ),
    ],
)
def test_a_wrong_calibration_is_refused(config: Config, change: str | dict[str, Any], message: str) -> None:
    tree: dict[str, Any] = {"model_sha256": SHA256, "prompts": {"category": entry(config.prompts[0])}}
    for key, value in change.items() if isinstance(change, dict) else ():
        if key.startswith("model") or key == "prompts":
            tree[key] = value
        elif isinstance(value, dict) and key == "categorie":
            tree["prompts"][key] = value
        else:
            tree["prompts"]["category"][key] = value
    assert config.calibration is not None
    text = change if isinstance(change, str) else yaml.safe_dump(tree, allow_unicode=True)
    config.calibration.write_text(text, encoding="utf-8")
    place = re.escape(f"calibration: {config.calibration}: ")
    with pytest.raises(ConfigError, match=rf"{place}(line \d+: )?{re.escape(message)}"):
        read_calibration(config)


def test_a_fit_and_a_temperature_of_ones_own_are_a_contradiction(config: Config) -> None:
    first, second = config.prompts
    own = replace(config, prompts=(replace(first, temperature=1.0), second))
    with pytest.raises(ConfigError, match=r"prompts\.category: the configuration gives this prompt temperature 1"):
        written(own, {"category": entry(first)})
    assert written(own, {"audience": entry(second)}) is not None
