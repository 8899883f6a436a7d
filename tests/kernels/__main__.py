"""`python -m kernels` in tests/, as `make kernels` and `make t4` call it: our kernels step by step, and llama.cpp's."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from unittest.mock import patch

from rich.console import Console

from qcls_gguf import ModelConfig, QclsError, load_config
from qcls_gguf.native.device import LANE_ORDER
from qcls_gguf.opening import ClassifierOpener
from qcls_gguf.report.document import Document
from qcls_gguf.report.environment import environment, gpu_state

from .variants import TOKENS, compare_variants


def main() -> int:
    """Compare as the arguments say, and print a table or JSON."""
    parser = argparse.ArgumentParser(prog="python -m kernels", description=__doc__)
    parser.add_argument("--model", default="Qwen/Qwen3-8B-GGUF:Q4_K_M", help="a GGUF file, or a repository of the hub")
    parser.add_argument("--tokens", type=lambda text: [int(n) for n in text.split(",")], default=TOKENS)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    asked = parser.parse_args()
    path = Path(asked.model)
    config = load_config("qwen3-8b-t4").changed(
        model=ModelConfig(path=path) if path.is_file() else ModelConfig(hf_repo=asked.model)
    )
    try:
        file_order = patch.dict("os.environ", {LANE_ORDER: "0"})
        with ClassifierOpener() as opener, file_order, opener.open(config) as classifier:
            n_batch, gpu = classifier.engine.context.n_batch, gpu_state()
            found = compare_variants(classifier, [n for n in asked.tokens if n <= n_batch], asked.rounds)
    except (ValueError, QclsError) as e:
        print(f"kernels: {e}", file=sys.stderr)
        return 1
    if asked.json:
        about = {"environment": environment(config).to_dict(), "model": asdict(classifier.model)}
        print(json.dumps({**about, "gpu_before": gpu and gpu.to_dict(), **asdict(found)}, indent=1))
    else:
        Console().print(Document(title="kernels", parts=found.parts()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
