"""The direct matrix kernels on a CUDA device: products are those of quantised activations, in double precision."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import written
from conftest import MakeModel, OpenClassifier, sees_cuda_gpu
from oracle import ITEM

from kernels.products import Floats, Matrix, backend, distance, exact, normalized, quantized
from kernels.variants import runs_code_for_75
from qcls_gguf import ModelError
from qcls_gguf.model.header import read_header
from qcls_gguf.native.device import LANE_ORDER, OWN_TYPES, STEPS

pytestmark = pytest.mark.skipif(not sees_cuda_gpu(), reason="needs a CUDA device")
N_K = 1024
SIZES = (2, 3, 5, 8, 9, 26, 57, 64, 72, 80, 88, 96, 104, 107, 112, 113, 120, 128, 129, 160, 257)
N_ROWS = (544, 96)  # neither is a whole number of tiles
TYPES = sorted(OWN_TYPES["GPU"])
HAVE_MINIMUMS = {"Q4_1", "Q5_1", "Q4_K", "Q5_K"}
LARGEST_OF_ROUNDING = {False: 2.5e-4, True: 9e-4}
"""Of a column, the median. A sum of 32 products is rounded to half a unit: up to 2.3e-4 where codes are small (IQ3_S).
Types with minimums multiply them by sums of activations, rounded to halves too: up to 8.7e-4 (Q4_1, glu). Measured."""
LARGEST_BETWEEN_KERNELS = {False: 6e-6, True: 1.2e-3}
"""Halves of both kinds differ by up to 7.3e-4 in these products."""
LARGEST_OF_A_VALUE = 4e-3
"""Of any column: halves give up to 2.8e-3 (Q5_1, glu and norm), and an activation between two int8 values, of which the
GPU chooses the other one, gives as much in any type."""
LAYOUTS = [*((name, False) for name in TYPES), ("Q6_K", True), ("Q8_0", True)]
KINDS: list[dict[str, Any]] = [{}, {"glu": True}, {"norm": True}, {"glu": True, "norm": True}]


def environment(short_loops: bool = True) -> dict[str, str]:
    return {STEPS["direct"]: "1", STEPS["short loops"]: str(int(short_loops))}


def activations(rng: np.random.Generator, n_cols: int) -> Floats:
    """Of many sizes, in some columns with values far from the rest, or with 128 that are tiny, or zeros."""
    y = rng.normal(0, 1, (n_cols, N_K)).astype(np.float32) * 10.0 ** rng.uniform(-2, 1, (n_cols, 1)).astype(np.float32)
    y[::3, 5] *= 30
    y[1:2, -128:] = 0
    y[2:3, 128:256] *= 1e-25
    y[3:4, 256:384] = 0
    return y


@pytest.mark.parametrize(("weight_type", "lanes"), LAYOUTS)
def test_products_are_exact(weight_type: str, lanes: bool) -> None:
    """With short loops and without."""
    if lanes and not runs_code_for_75():
        pytest.skip("needs code for 7.5")
    rng = np.random.default_rng(7)
    limit = LARGEST_OF_ROUNDING[weight_type in HAVE_MINIMUMS]
    with backend(environment()) as short, backend(environment(short_loops=False)) as plain:
        for i, n_cols in enumerate((*SIZES, 1) if lanes else SIZES):
            matrices = [Matrix.random(rng, weight_type, N_ROWS[i % 2], N_K) for _ in range(2)]
            y = activations(rng, n_cols)
            for kind in KINDS:
                given = normalized(y) if "norm" in kind else y
                wanted = exact(matrices, quantized(given), glu="glu" in kind)
                found = [gpu.multiply(matrices, y, **kind, lanes=lanes) for gpu in (short, plain)]
                for one, other, right in zip(*found, wanted, strict=True):
                    columns = [distance(one[c], right[c]) for c in range(n_cols)]
                    assert max(columns) < LARGEST_OF_A_VALUE, (n_cols, kind, max(columns))
                    assert "norm" in kind or np.median(columns) < limit, (n_cols, kind, np.median(columns))
                    between = distance(one, other.astype(np.float64))
                    assert between < LARGEST_BETWEEN_KERNELS[weight_type in HAVE_MINIMUMS], (n_cols, kind, between)


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("weight_type", "lanes"), LAYOUTS)
def test_what_is_not_finite_shows(weight_type: str, lanes: bool, value: float) -> None:
    """One activation, at any place, or a whole column: no product of that column is a number, and no other changes."""
    if lanes and not runs_code_for_75():
        pytest.skip("needs code for 7.5")
    rng = np.random.default_rng(9)
    matrices = [Matrix.random(rng, weight_type, 96, N_K) for _ in range(2)]
    for is_short, is_invariant in ((True, False), (False, False), (False, True)):
        with backend(environment(is_short), batch_invariant=is_invariant) as gpu:
            for n_cols in (2, 8, 26, 64, 107, 128, 160):
                y = activations(rng, n_cols)
                damaged = y.copy()
                one, whole = rng.choice(n_cols, 2, replace=False)
                damaged[one, rng.integers(N_K)] = value
                damaged[whole] = value
                for kind in KINDS:
                    before = gpu.multiply(matrices, y, **kind, lanes=lanes)
                    after = gpu.multiply(matrices, damaged, **kind, lanes=lanes)
                    for sound, found in zip(before, after, strict=True):
                        assert np.isfinite(sound).all()
                        where = f"{n_cols} columns, {kind}, short {is_short}, invariant {is_invariant}"
                        assert not np.isfinite(found[[one, whole]]).any(), where
                        others = np.delete(np.arange(n_cols), [one, whole])
                        np.testing.assert_array_equal(found[others], sound[others], err_msg=where)


@pytest.mark.parametrize("lanes", ["0", "1"])
@pytest.mark.parametrize(("weight_type", "place_of_scale"), [("Q8_0", 0), ("Q6_K", 208), ("Q4_K", 0)])
def test_a_model_with_one_damaged_block_is_refused(
    weight_type: str,
    place_of_scale: int,
    lanes: str,
    make_model: MakeModel,
    open_classifier: OpenClassifier,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """A scale of the gate is NaN, so that one activation in a thousand is, which the next product quantises."""
    source = make_model("qwen3", weight_type=weight_type, n_embd=512, n_ff=1024)
    tensor = read_header(source).tensors["blk.1.ffn_gate.weight"]
    data = bytearray(source.read_bytes())
    start = tensor.offset + place_of_scale
    data[start : start + 2] = np.float16("nan").tobytes()
    path = written(tmp_path / "damaged.gguf", data)
    monkeypatch.setenv(LANE_ORDER, lanes)
    with pytest.raises(ModelError, match="not finite"):
        open_classifier(path, [ITEM], n_gpu_layers="all", state_cache=False)


@pytest.mark.parametrize("weight_type", TYPES)
def test_batch_invariant_products_have_the_same_bits(weight_type: str) -> None:
    rng = np.random.default_rng(8)
    matrices = [Matrix.random(rng, weight_type, 544, N_K) for _ in range(2)]
    y = activations(rng, 160)
    orders = [False, True] if runs_code_for_75() and (weight_type, True) in LAYOUTS else [False]
    with backend(environment(), batch_invariant=True) as invariant:
        for kind in KINDS:
            whole = invariant.multiply(matrices, y, **kind)
            for n_cols in (1, 2, 8, 26, 64, 107, 128, 160):
                for lanes in orders:
                    part = invariant.multiply(matrices, y[:n_cols], **kind, lanes=lanes)
                    for few, many in zip(part, whole, strict=True):
                        np.testing.assert_array_equal(few, many[:n_cols], err_msg=f"{n_cols} columns, {kind}")
