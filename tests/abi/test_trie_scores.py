"""The native trie arithmetic is strict about its arrays; tests/abi/test_scorer.py has its results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qcls_gguf.errors import PlanError
from qcls_gguf.native import TrieScores


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
