"""The tail of a head against its formula, number by number."""

from __future__ import annotations

import math

import numpy as np
import pytest

from qcls_gguf.errors import ScoreError
from qcls_gguf.prompts.trie import build_trie
from qcls_gguf.score.scorer import Scorer
from qcls_gguf.score.tail import Tail

ROWS = {token: np.array(row, np.float32) for token, row in {1: (1, 2), 2: (-3, 0.5), 3: (0.25, 1)}.items()}
HIDDEN = np.array([[0.5, -1.5], [2, 3]], np.float32)
BIAS = {1: 0.25, 2: -1.0, 3: 2.0}


def logit(hidden: tuple[float, float], token: int, tail: Tail) -> float:
    product = sum(h * w for h, w in zip(hidden, ROWS[token].tolist(), strict=True))
    y = (product + (tail.bias[token] if tail.bias else 0)) * tail.scale
    return y if tail.cap is None else tail.cap * math.tanh(y / tail.cap)


@pytest.mark.parametrize(
    "tail",
    [
        Tail(),
        Tail(scale=1 / 3),
        Tail(bias=BIAS),
        Tail(cap=2.0),
        Tail(scale=0.5, cap=3.0),
        Tail(scale=0.5, bias=BIAS),
        Tail(scale=-2.0, cap=30.0, bias=BIAS),
    ],
    ids=str,
)
def test_logits_are_what_the_formula_says(tail: Tail) -> None:
    trie = build_trie(["a", "b", "c"], [(1,), (2,), (3,)], 9, "first_token")
    scores = Scorer([trie], ROWS, tail=tail).score(HIDDEN, np.array([[0, 0, 0], [1, 1, 1]], np.intp))
    for hidden, found, probability in zip(HIDDEN.tolist(), scores.score, scores.probability, strict=True):
        wanted = [logit(hidden, token, tail) for token in (1, 2, 3)]
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
        weights = np.exp(wanted)
        np.testing.assert_allclose(probability, weights / weights.sum(), rtol=1e-5)


def test_a_cap_hides_no_hidden_state_that_is_not_finite() -> None:
    trie = build_trie(["a", "b"], [(1,), (2,)], 9, "tree")
    scorer = Scorer([trie], ROWS, tail=Tail(cap=2.0))
    for bad in (math.inf, -math.inf, math.nan):
        with pytest.raises(ScoreError, match="not finite"):
            scorer.score(np.array([[bad, 1]], np.float32), np.zeros((1, 2), np.intp))
