"""The probes of a device's bandwidth and arithmetic, and llama.cpp's counter of reused graphs."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from qcls_gguf.errors import DecodeError, PlanError
from qcls_gguf.native.device import Probed, devices, probe

CPU = len(list(devices())) - 1
MATMUL: dict[str, Any] = {
    "n_threads": 1, "ggml_type": 12, "n_inner": 256, "n_rows": 128, "n_columns": 16, "budget_s": 0.01,
}  # fmt: skip


TYPES = {"F32": 0, "F16": 1, "Q8_0": 8, "Q4_K": 12, "Q6_K": 14, "IQ4_XS": 23, "BF16": 30}
PROBES = {
    "copy": partial(probe, "copy", CPU, n_threads=2, n_bytes=1 << 20, budget_s=0.01),
    "read": partial(probe, "read", CPU, n_threads=3, n_bytes=(1 << 20) + 5, budget_s=0.01),
    **{f"product, {name}": partial(probe, "product", CPU, **{**MATMUL, "ggml_type": TYPES[name]}) for name in TYPES},
    **{
        f"registers, {name}": partial(probe, "multiply", CPU, n_threads=2, ggml_type=TYPES[name], budget_s=0.01)
        for name in ("F32", "F16", "BF16")
    },
}


@pytest.mark.parametrize("probe", PROBES.values(), ids=PROBES.keys())
def test_what_is_probed_takes_a_time(probe: Callable[[], Probed]) -> None:
    found = probe()
    assert 0 < found.best_s <= found.median_s < math.inf


def test_types_without_products_of_ours_and_sizes_out_of_range_are_refused() -> None:
    with pytest.raises(DecodeError, match="no products of q2_K"):
        probe("multiply", CPU, n_threads=1, ggml_type=10, budget_s=0)
    with pytest.raises(PlanError, match="ggml type 99"):
        probe("multiply", CPU, n_threads=1, ggml_type=99, budget_s=0)
    with pytest.raises(PlanError, match="n_bytes"):
        probe("read", CPU, n_threads=1, n_bytes=3, budget_s=0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"ggml_type": 15}, "ggml type 15 is not one of weights"),
        ({"ggml_type": 4}, "ggml type 4"),
        ({"ggml_type": 99}, "ggml type 99"),
        ({"ggml_type": -1}, "ggml type -1"),
        ({"n_inner": 100}, "whole blocks of 256"),
        ({"n_inner": 0}, "between 1 and 65536"),
        ({"n_rows": 1 << 17}, "between 1 and 65536"),
        ({"n_columns": 0}, "between 1 and 65536"),
        ({"n_threads": 0}, "n_threads"),
    ],
)
def test_a_product_that_cannot_be_is_refused(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        probe("product", CPU, **{**MATMUL, **wrong})


def test_a_copy_that_cannot_be_is_refused() -> None:
    for n_bytes in (0, 3, 1 << 37):
        with pytest.raises(PlanError, match="n_bytes"):
            probe("copy", CPU, n_threads=1, n_bytes=n_bytes, budget_s=0.01)
    for device in (-1, CPU + 1):
        with pytest.raises(PlanError, match=f"no device {device}"):
            probe("copy", device, n_threads=1, n_bytes=1 << 20, budget_s=0.01)
