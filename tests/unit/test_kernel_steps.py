"""The steps of the CUDA kernels: which are on in which variant, and the environment that says so."""

from __future__ import annotations

import os

import numpy as np
import pytest

from qcls_gguf.bench.ab import largest_difference
from qcls_gguf.native.kernel_steps import LANE_ORDER, STEPS, Step, Variant, switched, variants

ONE_TWO = (
    Step(name="one", variable="QCLS_TEST_ONE", meaning="the first"),
    Step(name="two", variable="QCLS_TEST_TWO", meaning="the second"),
)


def test_variants_add_a_step_at_a_time() -> None:
    assert variants(ONE_TWO) == (
        Variant(name="stock", off=("QCLS_TEST_ONE", "QCLS_TEST_TWO")),
        Variant(name="+ one", off=("QCLS_TEST_TWO",)),
        Variant(name="+ two", off=()),
    )
    assert variants(()) == (Variant(name="stock", off=()),)


def test_steps_tell_themselves_apart() -> None:
    steps = (*STEPS, LANE_ORDER)
    for texts in ([step.name for step in steps], [step.variable for step in steps]):
        assert len(set(texts)) == len(texts)
    assert all(step.variable.startswith(("GGML_CUDA_", "QCLS_")) for step in steps)
    assert variants()[-1].off == ()


@pytest.mark.parametrize("before", [{}, {"QCLS_TEST_ONE": "0", "QCLS_TEST_TWO": "yes"}])
def test_a_variant_is_in_the_environment_while_it_is_made(
    before: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in ONE_TWO:
        monkeypatch.delenv(step.variable, raising=False)
    for variable, value in before.items():
        monkeypatch.setenv(variable, value)
    outside = dict(os.environ)
    seen = []
    for variant in variants(ONE_TWO):
        with switched(variant, ONE_TWO):
            seen.append([os.environ.get(step.variable) for step in ONE_TWO])
        assert dict(os.environ) == outside
    assert seen == [["0", "0"], ["1", "0"], ["1", "1"]]


def test_the_environment_is_put_back_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QCLS_TEST_ONE", "1")
    monkeypatch.delenv("QCLS_TEST_TWO", raising=False)
    with pytest.raises(RuntimeError, match="no context"), switched(variants(ONE_TWO)[0], ONE_TWO):
        raise RuntimeError("no context")
    assert os.environ["QCLS_TEST_ONE"] == "1"
    assert "QCLS_TEST_TWO" not in os.environ


def test_the_difference_is_that_of_the_worst_row() -> None:
    reference = np.array([[3.0, 4.0], [0.0, 10.0]], np.float32)
    assert largest_difference(reference, reference) == 0
    assert largest_difference(reference + np.array([[0, 1], [0, 1]], np.float32), reference) == pytest.approx(0.2)
    assert largest_difference(reference + np.array([[0, 0], [3, 4]], np.float32), reference) == pytest.approx(0.5)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_not_finite_shows_in_the_difference(value: float) -> None:
    reference = np.ones((2, 3), np.float32)
    rows = reference.copy()
    rows[1, 2] = value
    assert not np.isfinite(largest_difference(rows, reference))
    assert not np.isfinite(largest_difference(reference, rows))
