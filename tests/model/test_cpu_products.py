"""This project's products on a CPU in whole models: near llama.cpp's, and the same to the bit in any decode."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from cases import cases
from conftest import MakeModel, OpenContext
from cpu_kernels import built_library, has_tiles
from oracle import Float32Array, decode_sequence, random_tokens

from qcls_gguf.config.schema import CpuActivations
from qcls_gguf.native import NativeModel
from qcls_gguf.native.device import CPU_PRODUCTS

TYPES = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q6_K", "MXFP4"]
"""Those of which a random model can be written; tests/abi/test_products.py has all."""
ROTATED = {
    "qwen3": "pairs half a head apart",
    "llama": "pairs of neighbours",
    "gemma4": "layers with other frequencies, and with divisors",
    "longrope": "a factor",
}
ROWS_OF_LLAMA_CPP = """
import sys
from conftest import SIZES
from oracle import decode_sequence
from qcls_gguf.native import NativeContext, NativeModel

with NativeModel(sys.argv[1]) as model, NativeContext(model, flash_attn=False, **SIZES) as context:
    sys.stdout.buffer.write(decode_sequence(context, range(40), seq=1).tobytes())
"""
LENGTHS = 1, 2, 7, 31, 64
LARGEST_DIFFERENCE = 0.06
"""Root mean square, from llama.cpp's products, of the median token's row, whose own is 1; both with activations of 8
bits. Measured: 0.013 to 0.019; 0.032 and 0.046 of Q6_K, of which llama.cpp has one scale for 256 activations: ours
always have one for 32. One token of 64 chooses another expert by that difference, so its row differs by up to 0.75."""


def layouts_of(path: Path, use: str, caplog: pytest.LogCaptureFixture) -> tuple[NativeModel, bool]:
    """The model, and whether it has weights in our layout."""
    caplog.clear()
    with caplog.at_level("INFO", "qcls_gguf.llama"), patch.dict("os.environ", {CPU_PRODUCTS: use}):
        return NativeModel(path), "CPU_QCLS model buffer" in caplog.text


@cases(*(("qwen3", name) for name in TYPES), *(("qwen3moe", name) for name in ("Q8_0", "Q4_1", "Q4_K", "Q6_K")))
def test_near_llama_cpp_and_equal_in_every_decode(
    arch: str, weight_type: str, make_model: MakeModel, open_context: OpenContext, caplog: pytest.LogCaptureFixture
) -> None:
    path = make_model(arch, weight_type=weight_type, n_embd=512, n_ff=768 if arch == "qwen3" else 1024)
    stock, switched_off = layouts_of(path, "0", caplog)
    ours, is_ours = layouts_of(path, "1", caplog)
    assert not switched_off
    with stock, ours:
        if not is_ours:
            pytest.skip("this processor has no such products")
        of_stock = open_context(stock, flash_attn=False)
        tokens = random_tokens(np.random.default_rng(0), of_stock, max(LENGTHS))
        wanted = decode_sequence(of_stock, tokens, seq=1)
        rows = rows_of_decodes(ours, open_context)
    assert np.median(np.sqrt(np.mean((rows[-1] - wanted) ** 2, axis=1))) < LARGEST_DIFFERENCE
    for found in rows:
        np.testing.assert_array_equal(found, rows[-1][: len(found)])


def test_finer_is_nearer(make_model: MakeModel, open_context: OpenContext, caplog: pytest.LogCaptureFixture) -> None:
    """Models that are open beside each other, each with its precision."""
    path = make_model(weight_type="Q4_1", n_embd=512, n_ff=768)
    if not layouts_of(path, "1", caplog)[1]:
        pytest.skip("this processor has no such products")
    words: tuple[CpuActivations, ...] = "fast", "default", "fine"
    with ExitStack() as stack:
        models = [stack.enter_context(NativeModel(path, cpu_activations=word)) for word in words]
        rows = []
        for model in models:
            context = open_context(model, flash_attn=False)
            rows.append(decode_sequence(context, random_tokens(np.random.default_rng(0), context, 31), seq=1))
    fast, default, fine = rows
    assert np.linalg.norm(default - fine) > 0
    if has_tiles(built_library()):
        np.testing.assert_array_equal(fast, default)
    else:
        assert np.linalg.norm(default - fine) < np.linalg.norm(fast - fine)


@pytest.mark.parametrize("weight_type", ["F32", "F16", "BF16"])
def test_floats_are_equal_in_every_decode(weight_type: str, make_model: MakeModel, open_context: OpenContext) -> None:
    rows = rows_of_decodes(make_model(weight_type=weight_type, n_embd=512, n_ff=768), open_context)
    for found in rows:
        np.testing.assert_array_equal(found, rows[-1][: len(found)])


@pytest.mark.parametrize("arch", ROTATED)
def test_rotations_are_those_of_llama_cpp(
    arch: str, make_model: MakeModel, open_context: OpenContext, caplog: pytest.LogCaptureFixture
) -> None:
    path = make_model(arch, weight_type="Q8_0")
    command = [sys.executable, "-c", ROWS_OF_LLAMA_CPP, str(path)]
    environ = {**os.environ, CPU_PRODUCTS: "0"}
    done = subprocess.run(command, env=environ, cwd=Path(__file__).parents[1], capture_output=True, check=True)
    model, has_our_products = layouts_of(path, "0", caplog)
    assert not has_our_products  # rotations alone are ours here, because contexts are made without the variable
    with model:
        for n_threads in (1, 3):
            context = open_context(model, n_threads=n_threads, flash_attn=False)
            rows = decode_sequence(context, range(40), seq=1)
            np.testing.assert_array_equal(rows.ravel(), np.frombuffer(done.stdout, np.float32))
            context.close()


def rows_of_decodes(model: NativeModel | Path, open_context: OpenContext) -> list[Float32Array]:
    """Hidden states of a text's first tokens, decoded alone and with those after them, by 1 and by 3 threads."""
    rows = []
    for n_threads in (1, 3):
        for n in LENGTHS:
            context = open_context(model, n_threads=n_threads, flash_attn=False)
            tokens = random_tokens(np.random.default_rng(0), context, max(LENGTHS))
            rows.append(decode_sequence(context, tokens[:n], seq=1))
    return rows
