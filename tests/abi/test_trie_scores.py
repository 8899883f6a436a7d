"""The native trie arithmetic: equal to its definition in numpy, and strict about its arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qcls_gguf.errors import PlanError
from qcls_gguf.native import TrieScores
from qcls_gguf.score.tries import NumpyTries

Starts = list[int]


@st.composite
def layouts(draw: st.DrawFn) -> dict[str, Any]:
    """Nodes of one to five edges, labels of one to four."""
    sizes = st.lists(st.integers(1, 5), min_size=1, max_size=6)
    n_edges = sum(node_sizes := draw(sizes))
    label_sizes = draw(sizes)
    edge = st.integers(0, n_edges - 1)
    return {
        "node_start": np.cumsum([0, *node_sizes], dtype=np.int32),
        "label_start": np.cumsum([0, *label_sizes], dtype=np.int32),
        "label_edge": np.array(draw(st.lists(edge, min_size=sum(label_sizes), max_size=sum(label_sizes))), np.int32),
    }


@settings(deadline=None, max_examples=150, derandomize=True)
@given(layouts(), st.integers(1, 4), st.integers(0, 2**32 - 1), st.sampled_from([1.0, 30.0, 1e38]))
def test_it_computes_what_numpy_defines(arrays: dict[str, Any], n_queries: int, seed: int, scale: float) -> None:
    native, defined = (each(**arrays).room(n_queries) for each in (TrieScores, NumpyTries))
    logits = (np.random.default_rng(seed).standard_normal((n_queries, arrays["node_start"][-1])) * scale).astype("f4")
    for room in (native, defined):
        room.edge[:] = logits
        assert room.compute() == 0
    assert native.finite[0] == defined.finite[0]
    if native.finite[0]:
        np.testing.assert_allclose(native.score, defined.score, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(native.probability, defined.probability, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(native.edge, defined.edge, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_not_finite_show(value: float) -> None:
    for arithmetic in (TrieScores(**layout()), NumpyTries(**layout())):
        room = arithmetic.room(1)
        room.edge[:] = [[value, 0, 1, 2]]
        room.compute()
        assert not room.finite[0]


def layout(**changed: list[int]) -> dict[str, Any]:
    arrays = {"node_start": [0, 2, 4], "label_start": [0, 1, 3], "label_edge": [0, 1, 3], **changed}
    return {name: np.array(values, np.int32) for name, values in arrays.items()}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("node_start", [1, 2, 4]),
        ("node_start", [0, 2, 2]),
        ("node_start", [0, 3, 1]),
        ("label_start", [0, 1, 4]),
        ("label_start", [0, 0, 3]),
        ("label_edge", [0, 1, 4]),
        ("label_edge", [0, -1, 3]),
    ],
)
def test_a_layout_that_does_not_fit_is_refused(name: str, values: list[int]) -> None:
    TrieScores(**layout())
    with pytest.raises(PlanError, match="must"):
        TrieScores(**layout(**{name: values}))
    with pytest.raises(PlanError, match="int32"):
        TrieScores(**{**layout(), name: layout()[name].astype(np.int64)})
