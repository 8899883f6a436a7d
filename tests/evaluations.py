"""Evaluations of random models and of the embedded one: rows, configurations, and how the tests run them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from oracle import PromptSpec

from qcls_gguf import load_config
from qcls_gguf.config.scoring import SCORINGS, Scoring
from qcls_gguf.evaluation.evaluate import EvaluationSettings, evaluate
from qcls_gguf.opening import ClassifierOpener

ROOT = Path(__file__).parents[1]
COMMAND = str(Path(sys.executable).parent / "qcls-gguf")
HELD_OUT = ROOT / "models" / "tiny" / "heldout.jsonl"
MODES: list[Scoring] = list(SCORINGS)
TEMPLATE = "<|im_start|>user\n{topic} of {query}<|im_end|>\n<|im_start|>assistant\nlabel:"
LABELS = {"item": ("jump", "jumper", "tank top", "none"), "user": ("boy", "girl", "<b>$x$</b>")}


def specs(scoring: Scoring = "tree") -> list[PromptSpec]:
    """The prompts in a scoring."""
    return [
        PromptSpec(name=name, template=TEMPLATE.replace("{topic}", name), labels=labels, scoring=scoring)
        for name, labels in LABELS.items()
    ]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Rows as JSON lines."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command line."""
    return subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False)


def evaluated(config: Path, rows: Path, **options: Any) -> dict[str, Any]:
    """The record, as JSON has it."""
    options = {"modes": tuple(MODES), **options}
    settings = EvaluationSettings(config=load_config(config), path=rows, **options)
    with ClassifierOpener() as opener:
        return evaluate(settings, opener).to_dict()
