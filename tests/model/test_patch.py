"""The patched llama.cpp: hidden states of flagged tokens only, from which the head's rows give stock logits."""

import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import MakeModel, OpenContext
from nodes import random_tokens
from oracle import decode_sequence
from random_models import ARCHS

from qcls_gguf.errors import ModelError
from qcls_gguf.model.files import ModelFile, OutputRows
from qcls_gguf.native import NativeContext, NativeModel

PATCHES = sorted((Path(__file__).parents[2] / "patches").glob("*.patch"))

LARGEST_DIFFERENCE = {"F32": 1e-4, "F16": 0.005, "Q8_0": 0.1, "Q6_K": 0.16, "Q4_K": 0.17}
"""Between hidden state · head rows and stock logits, which spread over 2.5 units.

Measured on x86-64 over all models here: F32 1.6e-5, F16 0.0025, Q8_0 0.073, Q6_K 0.114, Q4_K 0.120. The graph rounds
activations to F16 or quantises them to 8 bits before it multiplies them with such a head; the product here does not.
"""

PLAIN = [name for name, spec in ARCHS.items() if spec.is_plain]
REFUSED_AT_LOAD = {
    "qwen3_bidirectional": "bidirectional",
    "dream": "diffusion",
    "mamba": "recurrent",
    "plamo2": "architecture plamo2, of which llama.cpp stores the states of several sequences in the wrong places",
    "t5": "decoder-only",
}


@pytest.mark.parametrize("head_type", LARGEST_DIFFERENCE)
@pytest.mark.parametrize(("name", "tied"), [*product([*PLAIN, "gemma3"], [False, True]), ("gpt-oss", False)])
def test_hidden_states_times_head_rows_are_the_logits(
    name: str, tied: bool, head_type: str, make_model: MakeModel, open_context: OpenContext
) -> None:
    """With quantised layers where they are quantised as well; with sliding windows, too."""
    path = make_model(name, tied=tied, head_type=head_type, weight_type="Q4_K" if head_type == "Q6_K" else "F32")
    hidden, stock = open_context(path), open_context(path, hidden_only=False)
    tokens = random_tokens(np.random.default_rng(0), stock, 24)
    head = OutputRows(ModelFile.read(path)).of(range(stock.row_size))
    found = decode_sequence(hidden, tokens) @ np.stack(list(head.values())).T
    wanted = decode_sequence(stock, tokens)
    assert wanted.std() > 1
    assert np.abs(found - wanted).max() <= LARGEST_DIFFERENCE[head_type]


@pytest.mark.parametrize(("name", "why"), REFUSED_AT_LOAD.items())
def test_a_model_that_cannot_branch_is_refused_at_load(name: str, why: str, make_model: MakeModel) -> None:
    with pytest.raises(ModelError, match=why):
        NativeModel(make_model(name))


def test_only_flagged_tokens_come_back_in_order(model: NativeModel, open_context: OpenContext) -> None:
    context = open_context(model)
    tokens = random_tokens(np.random.default_rng(0), context, 40)
    every = decode_sequence(context, tokens)
    for seed in range(5):
        output = np.random.default_rng(seed).random(40) < 0.3
        np.testing.assert_allclose(
            decode_sequence(open_context(model), tokens, output=output), every[output], rtol=0, atol=1e-4
        )


def test_nothing_is_written_behind_the_flagged_rows(context: NativeContext) -> None:
    buffer = np.full((4, context.row_size), 7.0, np.float32)
    ids = np.arange(3, dtype=np.int32)
    output = np.array([False, True, False])
    context.decode(ids, ids, np.arange(4, dtype=np.int32), np.zeros(3, np.int32), output, buffer[:1])
    assert (buffer[0] != 7).any()
    assert (buffer[1:] == 7).all()


@pytest.mark.parametrize("sizes", [(17, 23), (1, 38, 1), (1,) * 40], ids=["two", "single ends", "one by one"])
@pytest.mark.parametrize(
    ("options", "largest"),
    [({"flash_attn": False, "kv_type": "f32"}, 1e-5), ({"flash_attn": False}, 0.002), ({}, 0.006)],
    ids=["F32 cache", "F16 cache", "flash attention"],
)
def test_rows_hardly_depend_on_the_batch_split(
    options: dict[str, Any], largest: float, sizes: Sequence[int], model: NativeModel, open_context: OpenContext
) -> None:
    """Measured for rows of unit size: 2.2e-6, 6.2e-4 and 2.3e-3.

    Flash attention on a CPU has a less precise kernel for a token alone (ggml-cpu/ops.cpp), and an F16 cache rounds
    keys that differ in the last bit to neighbours.
    """
    context, parts, start = open_context(model, **options), [], 0
    tokens = random_tokens(np.random.default_rng(0), context, 40)
    whole = decode_sequence(open_context(model, **options), tokens)
    for size in sizes:
        parts.append(decode_sequence(context, tokens[start : start + size], start=start))
        start += size
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=0, atol=largest)


def test_patches_hold_call_sites_and_public_headers_gain_enumerators_alone() -> None:
    """A program built for the stock library, such as llama-cpp-python, must run with this one."""
    changed = re.compile(r"^[+-](?![+-] ?[ab/])[ \t]*(.*)", re.MULTILINE)
    for patch in PATCHES:
        files = re.split(r"^diff --git ", patch.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
        lines = [changed.findall(text.partition("@@")[2]) for text in files]
        assert sum(map(len, lines)) <= 100, f"{patch.name}: bodies belong into qcls_gguf/native"
        for text, of_file in zip(files, lines, strict=True):
            if re.search(r"^\+\+\+ b/(ggml/)?include/", text, re.MULTILINE):
                assert all(re.match(r"//|LLAMA_[A-Z_]+ = \d+,$", line) for line in of_file), of_file
