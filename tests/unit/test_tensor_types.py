"""ggml's types of tensors as the package gguf knows them: blocks, values, and the names of whole files."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from qcls_gguf.errors import PlanError
from qcls_gguf.model.header import GgufHeader, Scalar
from qcls_gguf.native.tensor_types import dequantised, type_block

OTHER_IN_GGUF = {gguf.GGMLQuantizationType.Q8_1}  # of activations only; ggml's blocks have two F16, gguf's two F32
NO_WEIGHTS = {"Q8_K", "I8", "I16", "I32", "I64", "F64"}
ONLY_IN_GGML = {"Q1_0"}
N_BLOCKS = 300


@pytest.mark.parametrize("kind", sorted(set(gguf.GGMLQuantizationType) - OTHER_IN_GGUF), ids=lambda kind: kind.name)
def test_a_type_is_what_gguf_takes_it_for(kind: gguf.GGMLQuantizationType) -> None:
    block = type_block(int(kind))
    assert block == gguf.GGML_QUANT_SIZES[kind]
    n_values, n_bytes = block
    data = np.random.default_rng(int(kind)).integers(0, 256, (N_BLOCKS, n_bytes), np.uint8)
    if kind.name in NO_WEIGHTS:
        with pytest.raises(PlanError, match="no values to multiply with"):
            dequantised(int(kind), data.ravel(), N_BLOCKS * n_values)
        return
    values = dequantised(int(kind), data.ravel(), N_BLOCKS * n_values)
    if kind.name in ONLY_IN_GGML:
        assert len(set(values[np.isfinite(values)].tolist())) > N_BLOCKS
        return
    with np.errstate(all="ignore"):
        wanted = gguf.quants.dequantize(data, kind).astype(np.float32).ravel()
    is_nan = np.isnan(wanted)
    assert np.array_equal(np.isnan(values), is_nan)
    assert np.array_equal(values[~is_nan].view(np.uint32), wanted[~is_nan].view(np.uint32))


@pytest.mark.parametrize("number", [4, 5, 31, 38, 200, 1 << 31, (1 << 32) - 1])
def test_a_number_that_no_type_has(number: int) -> None:
    assert type_block(number) is None


def test_files_are_named_as_gguf_names_them() -> None:
    def name(**scalars: Scalar) -> str:
        keys = {f"general.{key}": value for key, value in scalars.items()}
        return GgufHeader(path=Path(), stamp=("", 0, 0, 0), scalars=keys, tensors={}).quantization

    for kind in gguf.LlamaFileType:
        assert name(file_type=int(kind)) == kind.name.removeprefix("MOSTLY_").removeprefix("ALL_")
    assert {name(), name(file_type=5), name(file_type="7")} == {"unknown"}
