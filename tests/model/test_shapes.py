"""Kept shapes (patch 3) and trimming by sequence (patch 4): nothing changes but the work that is saved.

Contexts with more sequences than stock llama.cpp allows (patch 9), and what must still be refused.
"""

import re

import numpy as np
import pytest
from cases import cases
from conftest import OpenContext, RunPython
from oracle import Float32Array, Node, decode, decode_sequence
from random_models import ARCHS

from qcls_gguf.errors import DecodeError, PlanError
from qcls_gguf.native import NativeContext, NativeModel, build_info

LENGTHS = [3, 9, 3, 17, 9, 3, 1, 17, 9, 1, 3]


def sequences(context: NativeContext) -> list[list[int]]:
    random = np.random.default_rng(5)
    return [random.integers(0, context.model.facts.n_vocab, n).tolist() for n in LENGTHS]


def decode_each(context: NativeContext, several: list[list[int]] | None = None) -> list[Float32Array]:
    rows = []
    for tokens in several or sequences(context):
        rows.append(decode_sequence(context, tokens))
        context.trim(np.zeros(1, np.int32), np.zeros(1, np.int32))
    return rows


USABLE = [name for name, spec in ARCHS.items() if spec.memory in ("full", "window") and spec.tail == "head"]


@pytest.mark.parametrize("arch", USABLE)
@pytest.mark.parametrize("hidden_only", [True, False])
def test_rows_are_the_same_bit_by_bit(arch: str, hidden_only: bool, open_context: OpenContext) -> None:
    stock, kept = (open_context(arch, hidden_only=hidden_only) for _ in range(2))
    kept.keep_shapes(8)
    for row, wanted in zip(decode_each(kept), decode_each(stock), strict=True):
        np.testing.assert_array_equal(row, wanted)
    assert kept.counters().n_graphs_reused > 0


def test_every_shape_is_built_once(context: NativeContext) -> None:
    """Where they are not kept, only the last graph is there."""
    decode_each(context)
    counters = context.counters()
    assert (counters.n_shapes, counters.shapes_bytes, counters.n_graphs_reused) == (0, 0, 0)
    context.keep_shapes(8)
    decode_each(context)
    counters = context.counters()
    assert counters.n_shapes == len(set(LENGTHS))
    assert counters.n_graphs_reused == len(LENGTHS) - len(set(LENGTHS))
    assert counters.shapes_bytes > 0


def test_large_graphs_are_fewer(open_context: OpenContext) -> None:
    """On a CPU, where their buffers take more than 128 MiB: six of 3,000 tokens would. Rows are the same."""
    stock, kept = (open_context("qwen3", n_ctx=3072, n_batch=3072, n_outputs_max=3072) for _ in range(2))
    kept.keep_shapes(16)
    several = [[5] * n for n in (*range(3000, 2940, -10), 1, 2, 3)]
    for row, wanted in zip(decode_each(kept, several), decode_each(stock, several), strict=True):
        np.testing.assert_array_equal(row, wanted)
    assert 64 << 20 < kept.counters().shapes_bytes <= 128 << 20


def test_the_shape_that_idled_longest_makes_room(context: NativeContext) -> None:
    context.keep_shapes(2)
    rows = decode_each(context)
    assert context.counters().n_shapes == 2
    before = context.counters().n_graphs_reused
    last = sequences(context)[-1]
    np.testing.assert_array_equal(decode_sequence(context, last), rows[-1])
    assert context.counters().n_graphs_reused == before + 1


def test_shapes_can_be_freed_and_kept_again(context: NativeContext) -> None:
    wanted = decode_each(context)
    for n_shapes in (3, 0, 5):
        context.keep_shapes(n_shapes)
        assert context.counters().n_shapes == 0
        for row, other in zip(decode_each(context), wanted, strict=True):
            np.testing.assert_array_equal(row, other)
    with pytest.raises(PlanError, match="n_shapes is -1: it must be 0 or more"):
        context.keep_shapes(-1)


def test_a_trimmed_sequence_leaves_the_others_their_cells(context: NativeContext) -> None:
    """Sequence 1 shares 4 cells of sequence 0 and grows on; trimmed, both go on as if it never had."""
    whole = decode_sequence(context, list(range(10, 18)))
    context.share(0, 1, 0, 4)
    grown = decode_sequence(context, [90, 91, 92], seq=1, start=4)
    context.trim(np.array([1], np.int32), np.array([5], np.int32))
    np.testing.assert_array_equal(decode_sequence(context, [91, 92], seq=1, start=5), grown[1:])
    context.trim(np.array([1, 0], np.int32), np.array([0, 6], np.int32))
    np.testing.assert_array_equal(decode_sequence(context, [16, 17], start=6), whole[6:])


WHILE_DECODING = """
import threading
from qcls_gguf import Classifier, load_config

config = load_config("mission")
config = config.changed(runtime=config.runtime.changed(n_threads=1, n_gpu_layers=0))
exact = config.changed(prompts=tuple(prompt.changed(scoring="joint") for prompt in config.prompts))
is_over, seen = threading.Event(), set()

def ask(classifier):
    try:
        for n in range(30):
            for length in range(4):
                classifier.classify("red " * (1 + (n + length) % 12))
            with classifier.prompt_set(exact) as other:  # all graphs are freed before and after it
                other.classify("blue")
    finally:
        is_over.set()

with Classifier.from_config(config) as classifier:
    asking = threading.Thread(target=ask, args=(classifier,))
    asking.start()
    while not is_over.is_set():
        seen.add(classifier.engine.context.counters().n_shapes)
    asking.join()
print(0 <= min(seen) < max(seen) <= 16)
"""


def test_graphs_are_counted_while_another_thread_decodes(run_python: RunPython) -> None:
    """As by who scrapes the metrics of a service."""
    done = run_python(WHILE_DECODING)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_a_thousand_sequences(model: NativeModel, open_context: OpenContext) -> None:
    """A beginning of 5 tokens in 1,000 sequences, four of which grow on: one token together, then one each."""
    n = 1000
    context = open_context(model, n_ctx=2048, n_batch=n, n_outputs_max=n, n_seq_max=n, flash_attn=False)
    beginning = [10, 20, 30, 40, 50]
    whole = decode_sequence(open_context(model, flash_attn=False), [*beginning, 60, 70])
    rows = decode(context, [(token, pos, list(range(n))) for pos, token in enumerate(beginning)])
    np.testing.assert_allclose(rows, whole[:5], rtol=0, atol=1e-4)
    some = [0, 255, 256, n - 1]
    rows = decode(context, [(60, 5, some), *((70 + i, 6, [seq]) for i, seq in enumerate(some))])
    np.testing.assert_allclose(rows[:2], whole[5:], rtol=0, atol=1e-4)
    context.trim(np.array(some, np.int32), np.full(4, 5, np.int32))
    rows = decode(context, [(60, 5, [300]), (70, 6, [300])])
    np.testing.assert_allclose(rows, whole[5:], rtol=0, atol=1e-4)


def test_no_more_sequences_than_the_limit(model: NativeModel, open_context: OpenContext) -> None:
    n = build_info().max_sequences
    sizes = {"n_ctx": 8192, "n_batch": n + 1, "n_outputs_max": n + 1}
    open_context(model, n_seq_max=n, **sizes).close()
    with pytest.raises(PlanError, match=re.escape(f"n_seq_max is {n + 1}: it must be between 1 and {n}")):
        open_context(model, n_seq_max=n + 1, **sizes)


@cases(
    ([(1, 0, [1]), (2, 1, [1])], "must remain consecutive|inconsistent sequence positions"),
    ([(1, 3, [1]), (2, 5, [1])], "not continuous"),
    ([(1, 3, [1]), (2, 4, [1]), (3, 3, [1])], "decreasing"),
    ([(1, 4, [1, 2]), (2, 5, [1])], "diverged|inconsistent"),
    ([(1, 3, [1, 3]), (2, 4, [1])], "divereged|inconsistent"),
    ids=["overlap", "gap", "decreasing", "unequal", "one empty"],
)
def test_no_tree_is_refused(tokens: list[Node], message: str, model: NativeModel, open_context: OpenContext) -> None:
    context = open_context(model, flash_attn=False)
    decode(context, [(5, 0, [1]), (6, 1, [1]), (7, 2, [1]), (8, 0, [2]), (9, 1, [2])])
    with pytest.raises(DecodeError, match=message):
        decode(context, tokens)
    assert decode(context, [(9, 3, [1])]).shape == (1, context.row_size)
