"""What a request takes with models of each family, beside a Qwen3 of as many weights: `python tests/family_times.py`.

Small random models of equal sizes (4 layers, n_embd 1024, n_ff 3072, Q8_0), one thread; recurrent layers and attention
in turns, as the small models of the tests have them, Qwen3.5 as the 0.8B file has them. A line each: CPU time of a
request by that of Qwen3's in the same round, for each weight in the layers; median, least and most of the rounds. First
two prompts of their own, then eight of one text, all with labels of one token.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from oracle_prompts import TOPICS, make_template
from random_delta_nets import DeltaNet, qwen35
from random_models import ARCHS, write_model

from qcls_gguf import Classifier, Config, ModelConfig, PromptConfig, RuntimeConfig
from qcls_gguf.model.header import read_header

NAMES = ("gemma2", "gemma3", "gemma4", "granite", "command-r", "cohere2", "minicpm", "phi2", "starcoder2", "qwen2")
HYBRIDS = ("qwen35", "lfm2", "granitehybrid", "nemotron_h", "falcon-h1", "jamba")
LARGE: dict[str, Any] = {"n_layer": 4, "n_embd": 1024, "n_ff": 3072, "weight_type": "Q8_0", "head_type": "Q8_0"}
QUERIES = ("red summer dress for girls", "jeans for men", "light pink cashmere sweater for women")
N_ROUNDS = 9


def n_layer_weights(path: Path) -> int:
    """Weights in the layers of a file."""
    tensors = read_header(path).tensors
    return sum(int(np.prod(tensor.shape)) for name, tensor in tensors.items() if name.startswith("blk."))


def opened(path: Path, style: str, n_prompts: int) -> Classifier:
    """A classifier with prompts of a style, on one thread."""
    prompts = tuple(
        PromptConfig(name=topic, prompt_template=make_template(style, topic), labels=("red", "dress", "none"))
        for topic in TOPICS[:n_prompts]
    )
    runtime = RuntimeConfig(n_threads=1, max_query_tokens=24, max_batch=1, try_model=False)
    return Classifier.from_config(Config(prompts=prompts, model=ModelConfig(path=path), runtime=runtime))


def ratios(path: Path, plain: Path, style: str, n_prompts: int) -> tuple[list[float], str]:
    """CPU time by round of a model's requests by that of the plain one's, and the passes and tokens of both."""
    with opened(path, style, n_prompts) as one, opened(plain, style, n_prompts) as other:
        counts = [each.classify(QUERIES[0]).counts for each in (one, other)]
        found = []
        for turn in range(N_ROUNDS):
            took = [0.0, 0.0]
            for query in QUERIES:
                for which in (0, 1) if turn % 2 else (1, 0):
                    before = time.process_time()
                    (one, other)[which].classify(query)
                    took[which] += time.process_time() - before
            found.append(took[0] / took[1])
        passes, tokens = counts[0].n_decodes, counts[0].n_tokens_new
        return found, f"{passes} passes {tokens} tokens, {counts[1].n_tokens_new} plain"


def main(names: list[str]) -> None:
    """Print the lines."""
    net = DeltaNet(n_state=128, n_k_heads=16, n_v_heads=16, interval=4, n_rot=64)
    ARCHS["qwen35"] = replace(ARCHS["qwen35"], build=partial(qwen35, net=net))
    with tempfile.TemporaryDirectory() as folder:
        plain = write_model(Path(folder) / "plain.gguf", "qwen3", **LARGE)
        for name in names:
            heads = (256, 8, 2) if name == "qwen35" else None
            path = write_model(Path(folder) / "other.gguf", name, heads=heads, **LARGE)
            weights = n_layer_weights(path) / n_layer_weights(plain)
            for style, n_prompts in (("separate", 2), ("joint", 8)):
                found, counts = ratios(path, plain, style, n_prompts)
                low, middle, high = (float(np.quantile(found, at)) / weights for at in (0, 0.5, 1))
                print(f"{name:14} {n_prompts} {style:8} {middle:.2f} ({low:.2f}–{high:.2f})  {counts}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or [*NAMES, *HYBRIDS])
