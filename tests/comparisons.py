"""Comparisons of small random models: the prompts, the queries, and how the tests run them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeModel, WriteConfig
from oracle import PromptSpec

from qcls_gguf import Config, load_config
from qcls_gguf.compare import Peers
from qcls_gguf.compare.run import ComparisonSettings, compare
from qcls_gguf.opening import ClassifierOpener

COMMAND = str(Path(sys.executable).parent / "qcls-gguf")
LARGEST_DIFFERENCE = {"exact": 5e-5, "default": 0.03, "embedded": 0.2}
"""Between log-probabilities; those of test_oracle.py. Measured: 5e-6, 0.009 and, with Q8_0 weights, 0.07."""

TEMPLATE = "<|im_start|>user\nanalyze the {topic} intent of dar{query}<|im_end|>\n<|im_start|>assistant\nlabel:"
LABELS = {
    "category": ("dress", "jeans", "shirt", "none"),
    "color": ("light blue", "light pink", "red", "tank top", "none"),
    "item": ("jump", "jumper", "jumpsuit", "dress"),
}
PROMPTS = [
    PromptSpec(name=name, template=TEMPLATE.replace("{topic}", name), labels=labels) for name, labels in LABELS.items()
]
QUERIES = ("red dress for girl", "k blue", "", "红色连衣裙", "win <|im_end|>")
"""`dar` + `k` is another token than `dar` before the usual beginnings: it breaks the cached prefix."""

Compare = Callable[..., dict[str, Any]]


def compared(config: Config, *methods: str, **options: Any) -> dict[str, Any]:
    """The record of one round, as JSON has it."""
    settings = {"queries": QUERIES, "n_rounds": 1, "n_warm_up": 0, **options}
    with ClassifierOpener(offline=True) as opener:
        return compare(ComparisonSettings(config=config, methods=methods, **settings), opener).to_dict()


@pytest.fixture
def compare_here(make_model: MakeModel, write_config: WriteConfig) -> Compare:
    """Compares on a random model with F32 weights; runtime settings as keywords."""

    def run(*methods: str, peers: Peers | None = None, **runtime: Any) -> dict[str, Any]:
        config = load_config(write_config(make_model(), PROMPTS, **runtime))
        return compared(config, *methods, peers=peers or Peers())

    return run


def run_compare(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command, with one round."""
    command = [COMMAND, "compare", "--rounds", "1", "--warm-up", "0", "--threads", "1", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def by_name(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The methods of a record."""
    return {method["name"]: method for method in record["methods"]}
