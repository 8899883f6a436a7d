"""Random heads for prompts of small models, their file, and the slow mirror of their answers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from oracle import N_CTX, Oracle, PromptSpec, decode_sequence, log_softmax
from oracle_prompts import prompt_config

from qcls_gguf.config.fitted import Head, heads_content
from qcls_gguf.native import NativeContext, NativeModel

COMMON = "<|im_start|>{query}<|im_end|>"


def random_head(rng: np.random.Generator, n_embd: int, n_labels: int, depth: int, **more: Any) -> Head:
    weight = rng.normal(0, 2 / np.sqrt(n_embd), (n_embd, n_labels)).astype(np.float32)
    return Head(depth=depth, weight=weight, bias=rng.normal(size=n_labels).astype(np.float32), **more)


def write_heads(path: Path, model: NativeModel, sha256: str, heads: Mapping[str, tuple[PromptSpec, Head]]) -> Path:
    configs = {name: (prompt_config(spec), head) for name, (spec, head) in heads.items()}
    path.write_bytes(heads_content(sha256, model.facts.n_layer, model.facts.n_embd, configs))
    return path


def mirror(oracle: Oracle, prompt: PromptSpec, head: Head, query: str) -> list[float]:
    """A head's log-probabilities, its state from a decode of the whole text alone, by the definition."""
    tokens = oracle.rendered(head.text or prompt.template, query)
    with NativeContext(
        oracle.model, n_ctx=N_CTX, n_batch=N_CTX, n_seq_max=1, n_outputs_max=N_CTX, n_threads=1, flash_attn=False,
        kv_type="f32",
    ) as context:  # fmt: skip
        n = oracle.model.facts.n_embd
        if head.depth < oracle.model.facts.n_layer:
            context.set_depths(np.array([head.depth], np.int32))
        state = decode_sequence(context, tokens)[-1, -n:].astype(np.float64)
    found = state / np.sqrt((state**2).mean()) @ head.weight.astype(np.float64) + head.bias
    if head.scale:
        found = found + head.scale * np.array(oracle.score(prompt, query)[0])
    return [float(value) for value in log_softmax(found)]
