"""The patched llama.cpp: hidden states of flagged tokens only, from which the head's rows give stock logits.

Hidden states at several depths: against models that have only so many layers, of graphs that end there, and of
models of which only so many layers are loaded.
"""

import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import cases
from conftest import MakeModel, OpenContext
from gguf import GGUFReader
from oracle import Float32Array, decode_sequence, random_tokens
from oracle_prompts import EXACT
from random_models import ARCHS

from qcls_gguf.errors import ModelError, PlanError
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


def test_nothing_is_written_behind_the_flagged_rows(context: NativeContext) -> None:
    buffer = np.full((4, context.row_size), 7.0, np.float32)
    ids = np.arange(3, dtype=np.int32)
    output = np.array([False, True, False])
    context.decode(ids, ids, np.arange(4, dtype=np.int32), np.zeros(3, np.int32), output, buffer[:1])
    assert (buffer[0] != 7).any()
    assert (buffer[1:] == 7).all()


@pytest.mark.parametrize("sizes", [(17, 23), (1, 38, 1), (1,) * 40], ids=["two", "single ends", "one by one"])
@cases(
    ({"flash_attn": False, "kv_type": "f32"}, 1e-5),
    ({"flash_attn": False}, 0.002),
    ({}, 0.006),
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


N_LAYER = 4
TOKENS = [5, 6, 7, 8, 9, 11]
UNSHOWN = {"gemma3n": "after layer"}
"""Its residual stream has several rows a token."""
COUNTING = ("command-r", "gemma4", "minicpm3")
"""Their layers depend on how many there are, so that they are loaded whole."""
WITHOUT_DEPTHS = ("mamba", "plamo2", "t5")
NAMES = [
    name
    for name, spec in ARCHS.items()
    if name not in WITHOUT_DEPTHS and spec.memory != "none" and spec.tail not in ("other", "none")
]


def depths(*numbers: int) -> Any:
    return np.array(numbers, np.int32)


def normed(path: Path, state: Float32Array) -> Float32Array:
    """States through the final norm of a file: an RMS norm or a layer norm."""
    found = {tensor.name: tensor.data for tensor in GGUFReader(path).tensors}
    name = "output_norm" if "output_norm.weight" in found else "token_embd_norm"
    bias = found.get(f"{name}.bias")
    if bias is not None or path.name.startswith(("command-r", "cohere2")):
        state = state - state.mean(axis=1, keepdims=True)
    state = state / np.sqrt(np.square(state).mean(axis=1, keepdims=True) + 1e-5)
    weight = found.get(f"{name}.weight", np.float32(1))
    return np.asarray(state * weight + (0 if bias is None else bias), np.float32)


def without_effect(path: Path, first: int, copy: Path) -> Path:
    """A copy of a model whose layers from `first` on add nothing to the residual stream."""
    copy.write_bytes(path.read_bytes())
    for tensor in GGUFReader(copy, "r+").tensors:
        block, _, rest = tensor.name.removeprefix("blk.").partition(".")
        if block.isdigit() and int(block) >= first and not rest.startswith("layer_output_scale"):
            tensor.data[...] = 0
    return copy


@pytest.mark.parametrize("name", [name for name in NAMES if name not in UNSHOWN])
def test_states_are_layers_inputs(name: str, tmp_path: Path, make_model: MakeModel, open_context: OpenContext) -> None:
    """Beside the whole graph and where it ends; some tokens flagged, and none.

    Where higher layers add nothing, the final norm is that of the state.
    """
    flagged = np.arange(len(TOKENS)) % 2 == 0
    path = make_model(name, n_layer=N_LAYER)
    whole, beside, ended = (open_context(path, **EXACT) for _ in range(3))
    n_embd = whole.row_size
    plain = decode_sequence(whole, TOKENS, output=flagged)
    beside.set_depths(depths(1, 2, 3))
    decode_sequence(beside, TOKENS[:3], output=np.zeros(3, np.bool_), seq=1)
    found = decode_sequence(beside, TOKENS, output=flagged)
    np.testing.assert_allclose(found[:, :n_embd], plain, rtol=0, atol=1e-5)
    for depth in range(1, N_LAYER):
        state = found[:, depth * n_embd : (depth + 1) * n_embd]
        other = open_context(without_effect(path, depth, tmp_path / f"{depth}.gguf"), **EXACT)
        wanted = decode_sequence(other, TOKENS, output=flagged)
        assert np.abs(wanted - plain).max() > 0.01
        np.testing.assert_allclose(normed(path, state), wanted, rtol=2e-4, atol=2e-4)
        ended.set_depths(depths(*range(1, depth)), depth)
        assert ended.row_size == depth * n_embd
        ended.trim(depths(0), depths(0))
        rows = decode_sequence(ended, TOKENS, output=flagged)
        np.testing.assert_allclose(rows[:, :n_embd], state, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(rows[:, n_embd:], found[:, n_embd : depth * n_embd], rtol=1e-5, atol=1e-5)
        with NativeModel(path, n_first=depth) as first:
            n_loaded = first.facts.n_layer - first.facts.n_left_out
            assert first.facts.n_layer == N_LAYER
            assert n_loaded == depth or (n_loaded > depth and (name in COUNTING or first.facts.state_bytes))
            context = open_context(first, **EXACT)
            context.set_depths(depths(), depth)
            decode_sequence(context, TOKENS[:3], output=np.zeros(3, np.bool_), seq=1)
            rows = decode_sequence(context, TOKENS, output=flagged)
            np.testing.assert_allclose(rows, state, rtol=1e-5, atol=1e-5)
            if n_loaded < N_LAYER:
                with pytest.raises(PlanError, match=f"only {n_loaded} of the model's 4 layers are loaded"):
                    context.set_depths(depths(1))
            context.close()


@pytest.mark.parametrize("name", UNSHOWN)
def test_a_stream_of_another_shape_is_refused(name: str, make_model: MakeModel, open_context: OpenContext) -> None:
    context = open_context(name, **EXACT)
    before = decode_sequence(context, TOKENS)
    with pytest.raises(ModelError, match=UNSHOWN[name]):
        context.set_depths(depths(1))
    context.trim(depths(0), depths(0))
    np.testing.assert_array_equal(decode_sequence(context, TOKENS), before)
    with NativeModel(make_model(name), n_first=1) as model:
        assert model.facts.n_left_out == 0
