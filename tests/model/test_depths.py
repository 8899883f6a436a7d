"""Hidden states at several depths: against models that have only so many layers, of graphs that end there, and of
models of which only so many layers are loaded."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import MakeModel, OpenContext
from gguf import GGUFReader
from oracle import Float32Array, decode_sequence
from oracle_prompts import EXACT
from random_models import ARCHS

from qcls_gguf.errors import ModelError, PlanError
from qcls_gguf.native import NativeModel

N_LAYER = 4
TOKENS = [5, 6, 7, 8, 9, 11]
UNSHOWN = {"gemma3n": "after layer"}
"""Its residual stream has several rows a token."""
COUNTING = ("command-r", "gemma4", "minicpm3")
"""Their layers depend on how many there are, so that they are loaded whole."""
REFUSED_AT_LOAD = ("mamba", "plamo2", "t5")
NAMES = [
    name
    for name, spec in ARCHS.items()
    if name not in REFUSED_AT_LOAD and spec.memory != "none" and spec.tail not in ("other", "none")
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
    with copy.open("r+b") as file:
        for tensor in GGUFReader(path).tensors:
            block, _, rest = tensor.name.removeprefix("blk.").partition(".")
            if block.isdigit() and int(block) >= first and not rest.startswith("layer_output_scale"):
                file.seek(tensor.data_offset)
                file.write(bytes(tensor.n_bytes))
    return copy


@pytest.mark.parametrize("name", [name for name in NAMES if name not in UNSHOWN])
def test_states_are_what_higher_layers_get(
    name: str, tmp_path: Path, make_model: MakeModel, open_context: OpenContext
) -> None:
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
