"""Evaluations of random models and of the embedded one: rows, configurations, and how the tests run them."""

from pathlib import Path
from typing import Any

from oracle import PromptSpec

from qcls_gguf import load_config
from qcls_gguf.config.scoring import Scoring
from qcls_gguf.evaluation.evaluate import evaluate
from qcls_gguf.opening import ClassifierOpener

TEMPLATE = "<|im_start|>user\n{topic} of {query}<|im_end|>\n<|im_start|>assistant\nlabel:"
LABELS = {"item": ("jump", "jumper", "tank top", "none"), "user": ("boy", "girl", "<b>$x$</b>")}


def specs(scoring: Scoring = "tree") -> list[PromptSpec]:
    """The prompts in a scoring."""
    return [
        PromptSpec(name=name, template=TEMPLATE.replace("{topic}", name), labels=labels, scoring=scoring)
        for name, labels in LABELS.items()
    ]


def evaluated(config: Path, rows: Path, **options: Any) -> dict[str, Any]:
    """The record, as JSON has it."""
    with ClassifierOpener() as opener:
        return evaluate(load_config(config), rows, opener, **options).to_dict()
