"""`python -m kernels` in tests/, as `make kernels` and `make t4` call it.

    variants [--model MODEL] [--tokens N,…] [--rounds N]   our kernels step by step against llama.cpp's, in turns
    t4 --out FILE [--model MODEL]…                         all that the owner of a T4 should run once, in one file

MODEL is a GGUF file, or a repository of the Hugging Face hub with a quantisation, as in Qwen/Qwen3-8B-GGUF:Q4_K_M.
"""

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from qcls_gguf import Config, ModelConfig, QclsError, load_config
from qcls_gguf.native.device import LANE_ORDER
from qcls_gguf.native.device import environment as kernel_environment
from qcls_gguf.opening import ClassifierOpener
from qcls_gguf.report.document import Document, Part
from qcls_gguf.report.environment import environment, gpu_state

from .variants import TOKENS, compare_variants

ROOT = Path(__file__).parents[2]
MODELS = ("Qwen/Qwen3-8B-GGUF:Q4_K_M", "Qwen/Qwen3-8B-GGUF:Q8_0")
CONFIGS = ("mission", "fashion-8", "fashion-8-joint")
GPU_TESTS = ("test_mmq_direct.py", "test_gpu_*.py")
_LAST_CHARACTERS = 4000

Found = tuple[dict[str, Any], list[Part | None]]
"""what is written as JSON, and what is shown"""


def variants(arguments: argparse.Namespace) -> Found:
    """The kernels step by step, on the model of a configuration or of --model."""
    config = with_model(load_config("qwen3-8b-t4"), arguments.model)
    with ClassifierOpener() as opener, kernel_environment({LANE_ORDER: "0"}), opener.open(config) as classifier:
        n_batch = classifier.engine.context.n_batch
        tokens = [n for n in arguments.tokens if n <= n_batch]
        before = gpu_state()
        found = compare_variants(classifier, tokens, arguments.rounds)
    record = {
        "environment": environment(config).to_dict(),
        "model": asdict(classifier.model),
        "gpu_before": before and before.to_dict(),
        **asdict(found),
    }
    return record, found.parts()


def with_model(config: Config, model: str) -> Config:
    """The configuration with another model."""
    if Path(model).is_file():
        return config.changed(model=ModelConfig(path=Path(model)))
    return config.changed(model=ModelConfig(hf_repo=model))


def t4(arguments: argparse.Namespace) -> Found:
    """Run each part as a command of its own, so that one that fails leaves the rest; written after every one."""
    record: dict[str, Any] = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "parts": {}}
    commands = t4_commands(arguments.model or MODELS)
    for number, (name, command) in enumerate(commands.items(), 1):
        print(f"{number} of {len(commands)}: {name}: {' '.join(command[1:])}", file=sys.stderr, flush=True)
        record["parts"][name] = run_part(command)
        arguments.out.write_text(json.dumps(finite(record), indent=1), encoding="utf-8")
    failed = [name for name, part in record["parts"].items() if part["returncode"]]
    print(f"written: {arguments.out}; failed: {', '.join(failed) or 'nothing'}", file=sys.stderr)
    return record, []


def t4_commands(models: Sequence[str]) -> dict[str, list[str]]:
    """The commands by the names of their parts."""
    python, qcls = sys.executable, str(Path(sys.executable).parent / "qcls-gguf")
    tests = [str(path) for name in GPU_TESTS for path in sorted((ROOT / "tests/model").glob(name))]
    commands = {"tests": [python, "-m", "pytest", "-q", "-n0", *tests, str(ROOT / "tests/kernels")]}
    for model in models:
        is_file = Path(model).is_file()
        short = Path(model).name if is_file else model.partition(":")[2]
        given = ["-m" if is_file else "-hf", model]
        commands[f"{short}, kernels"] = [python, "-m", "kernels", "variants", "--json", "--model", model]
        configs = [word for name in CONFIGS for word in ("-c", name)]
        commands[f"{short}, requests"] = [
            *(qcls, "bench", *configs, "--batch", "1", "--batch", "4"),
            *(*given, "--format", "json", "--quiet"),
        ]
        for config in CONFIGS:
            methods = [word for name in ("naive", "prefix", "batched") for word in ("--method", name)]
            commands[f"{short}, {config}, other methods"] = [
                *(qcls, "compare", "-c", config, *given, *methods, "--format", "json", "--quiet")
            ]
    return commands


def run_part(command: list[str]) -> dict[str, Any]:
    """What a command printed, as JSON where it is, and how it ended."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT / "tests", check=False)
    try:
        printed = json.loads(done.stdout)
    except ValueError:
        printed = done.stdout[-_LAST_CHARACTERS:]
    errors = done.stderr[-_LAST_CHARACTERS:]
    return {"command": command[1:], "returncode": done.returncode, "printed": printed, "errors": errors}


def finite(value: Any) -> Any:
    """The value with null for numbers that are not finite, which JSON cannot hold."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def main() -> int:
    """Run the command that the arguments name."""
    assert __doc__
    parser = argparse.ArgumentParser(
        prog="python -m kernels", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    for name, function in (("variants", variants), ("t4", t4)):
        command = commands.add_parser(name)
        command.set_defaults(run=function)
        command.add_argument("--json", action="store_true", help="print JSON instead of a table")
        if name == "variants":
            command.add_argument("--model", default=MODELS[0])
            command.add_argument("--tokens", type=lambda text: [int(n) for n in text.split(",")], default=TOKENS)
            command.add_argument("--rounds", type=int, default=10)
        else:
            command.add_argument("--out", type=Path, required=True)
            command.add_argument("--model", action="append")
    arguments = parser.parse_args()
    try:
        record, parts = arguments.run(arguments)
    except (ValueError, QclsError) as e:
        print(f"kernels: {e}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(finite(record), indent=1))
    elif parts:
        Console().print(Document(title="kernels", parts=parts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
