"""What a configuration says of calibration, and the file that it may name: what loads, and every refusal's words."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from config_texts import FOLDER, parse

from qcls_gguf.config.fitted import (
    Calibration,
    PromptCalibration,
    calibration_text,
    check_model,
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
    ("change", "same"),
    [
        ({"prompt_template": "{query}"}, False),
        ({"label_prefix": ""}, False),
        ({"scoring": "joint"}, False),
        ({"prior": "content_free", "content_free_queries": ("",)}, False),
        ({"content_free_queries": ("",)}, True),  # no prior is computed from them
        ({"temperature": 2.0}, True),
    ],
)
def test_the_hash_of_a_prompt_is_of_what_its_scores_depend_on(change: dict[str, Any], same: bool) -> None:
    prompt = parse(PROMPT).prompts[0]
    assert (prompt_hash(prompt.changed(**change)) == prompt_hash(prompt)) is same


def entry(prompt: PromptConfig, **more: Any) -> PromptCalibration:
    return PromptCalibration(prompt_hash=prompt_hash(prompt), scoring=prompt.scoring, temperature=1.5, **more)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "config.yaml").write_text(f"calibration: c.yaml\n{PROMPT}{SECOND}", encoding="utf-8")
    return load_config(tmp_path / "config.yaml")


def written(config: Config, prompts: dict[str, PromptCalibration]) -> Calibration | None:
    assert config.calibration is not None
    config.calibration.write_text(calibration_text(SHA256, prompts), encoding="utf-8")
    return read_calibration(config)


def test_what_is_written_is_read(config: Config) -> None:
    """Of a subset of the prompts, with labels that YAML would take for something else."""
    bias = {"dress": 0.5, "no": -0.75, "孕": 0.25}
    fit = entry(config.prompts[0], bias=bias)
    found = written(config, {"category": fit})
    assert found is not None
    assert found.prompts == {"category": fit}
    assert fit.biases(config.prompts[0].labels) == [0.5, -0.75, 0.25]
    check_model(config, SHA256, found)
    with pytest.raises(ConfigError, match=r"c\.yaml .* sha256 abababababab…, this one is cdcd.*calibrate"):
        check_model(config, "cd" * 32, found)
    assert read_calibration(config.changed(calibration=None)) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("nothing", "expected keys and values, got nothing"),
        ("another prompt", "prompts.categorie: is no prompt of the configuration, which has category, audience"),
        ({"temperature": float("inf")}, "prompts.category.temperature: inf should be less than or equal to 100"),
        ({"prompt_hash": "cd" * 32}, "prompts.category: was fitted to the prompt of hash cdcdcdcdcdcd…, it is "),
        ({"bias": {"dress": 1, "no": 2}}, "prompts.category: its bias has other labels than the prompt: run"),
    ],
)
def test_a_wrong_calibration_is_refused(config: Config, change: str | dict[str, Any], message: str) -> None:
    known, text = entry(config.prompts[0]), ""
    if change != "nothing":
        name = "categorie" if isinstance(change, str) else "category"
        tree = yaml.safe_load(calibration_text(SHA256, {name: known}))
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
        written(own, {"category": entry(first)})
    assert written(own, {"audience": entry(second)}) is not None
