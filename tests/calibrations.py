"""Configurations that calibrate, of random models and of the embedded one, and what they answer."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import MakeModel, WriteConfig
from evaluations import ROOT, TEMPLATE
from oracle import PromptSpec

from qcls_gguf import Classifier
from qcls_gguf.config.scoring import Scoring

LABELS = {"item": ("jump", "jumper", "tank top", "none"), "user": ("boy", "girl", "man")}
FASHION = ("audience", "colour")
QUERY = "red dress"


def specs(*scorings: Scoring) -> list[PromptSpec]:
    """The prompts, each in its scoring."""
    return [
        PromptSpec(name=name, template=TEMPLATE.replace("{topic}", name), labels=LABELS[name], scoring=scoring)
        for name, scoring in zip(LABELS, scorings, strict=True)
    ]


def changed(path: Path, *, prompt: str | None = None, **keys: Any) -> Path:
    """A copy of a configuration with more keys: of a prompt, or of the top level."""
    tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    place = tree if prompt is None else next(entry for entry in tree["prompts"] if entry["name"] == prompt)
    place.update(keys)
    copy = path.with_name(f"{path.stem}-{len(list(path.parent.iterdir()))}.yaml")
    copy.write_text(yaml.safe_dump(tree, allow_unicode=True), encoding="utf-8")
    return copy


def probabilities(path: Path, query: str = QUERY) -> dict[str, list[float]]:
    """The probabilities of each prompt's labels."""
    with Classifier.from_config(path) as classifier:
        results = classifier.classify(query).results
    return {answer.prompt: [score.probability for score in answer.scores] for answer in results}


def softmax(score: list[float]) -> list[float]:
    """Over a list."""
    power = np.exp(np.array(score) - max(score))
    return [float(p) for p in power / power.sum()]


@pytest.fixture
def config(make_model: MakeModel, write_config: WriteConfig) -> Path:
    """A random model with two prompts."""
    return write_config(make_model(), specs("tree", "first_token"), flash_attn=False, kv_type="f32")


@pytest.fixture
def fashion(tmp_path: Path) -> Path:
    """The embedded model with these two prompts, as a file to change."""
    tree = yaml.safe_load((ROOT / "configs" / "fashion-8.yaml").read_text(encoding="utf-8"))
    tree["model"] = {"path": str(ROOT / "models" / "fashion-tiny-Q8_0.gguf")}
    tree["prompts"] = [prompt for prompt in tree["prompts"] if prompt["name"] in FASHION]
    path = tmp_path / "fashion.yaml"
    path.write_text(yaml.safe_dump(tree, allow_unicode=True), encoding="utf-8")
    return path
