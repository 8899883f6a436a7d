"""Single decodes of n new tokens after a prompt's cached prefix, without tokenizer, planner and scorer."""

from time import perf_counter_ns

import numpy as np
import numpy.typing as npt

from qcls_gguf import Classifier
from qcls_gguf.engine.engine import Engine
from qcls_gguf.plan.decodes import DecodeInput, Root, TokenTree

Float32Array = npt.NDArray[np.float32]
N_OUTPUTS = 2
"""hidden states are read for this many of the last new tokens"""


def hidden_states(classifier: Classifier, n_tokens: int, n_other: int = 0, *, prompt: int = 0) -> Float32Array:
    """(N_OUTPUTS, n_embd) after a prompt's prefix and n_tokens new tokens; n_other as in sequence_plan."""
    held = classifier.held[prompt]
    root = Root(held.holder, len(held.tokens))
    plan = sequence_plan(classifier.engine, root, n_tokens, n_other)
    return timed_decode(classifier.engine, plan)[0].copy()


def sequence_plan(engine: Engine, root: Root, n_tokens: int, n_other: int = 0) -> DecodeInput:
    """One sequence of n_tokens new tokens, the last few of which are read.

    n_other: tokens of a second sequence in the same decode, none of which is read.
    """
    text = engine.model.tokenize(" red dress for girls in summer", parse_special=False).tolist()
    tree = TokenTree()
    start = node = tree.add_root(root)
    for i in range(n_tokens):
        node = tree.add_path(node, [text[i % len(text)]])
        if i >= n_tokens - min(N_OUTPUTS, engine.context.n_outputs_max):
            tree.read(node)
    if n_other:
        tree.add_path(start, [text[-1 - i % len(text)] for i in range(n_other)])
    return tree.finish()


def timed_decode(engine: Engine, plan: DecodeInput) -> tuple[Float32Array, float]:
    """The rows of a decode; its milliseconds do not include the trimming after it."""
    begun = perf_counter_ns()
    rows, _, trim_us = engine.decode(plan)
    return rows, (perf_counter_ns() - begun) / 1e6 - trim_us / 1e3


def largest_difference(rows: Float32Array, reference: Float32Array) -> float:
    """max over rows of |row - reference| / |reference|, Euclidean; NaN or infinite where a value is not finite."""
    difference = rows.astype(np.float64) - reference
    with np.errstate(all="ignore"):
        return float(np.max(np.linalg.norm(difference, axis=1) / np.linalg.norm(reference.astype(np.float64), axis=1)))
