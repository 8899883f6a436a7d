"""Queries that go on from a kept one: answers as without, only what is new is fed, and cells that are never lost."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import OpenClassifier
from oracle import PromptSpec
from oracle_prompts import SEPARATE, STYLES

from qcls_gguf import Classifier, ConfigError, DecodeError, PlanError, Result
from qcls_gguf.plan.kept_queries import MOST_TOKENS
from qcls_gguf.plan.templates import Template
from qcls_gguf.prompts.compiled import common_prefix

LARGEST_DIFFERENCE = 1e-4
"""of log-probabilities. Measured: 0, on processors with AMX and without"""


def scores(result: Result) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([score.score for answer in result.results for score in answer.scores])


def assert_alike(kept: Classifier, plain: Classifier, query: str) -> int:
    """That both answer alike; returns how many tokens were not fed because they are kept."""
    found, wanted = kept.classify(query), plain.classify(query)
    np.testing.assert_allclose(scores(found), scores(wanted), rtol=0, atol=LARGEST_DIFFERENCE, err_msg=repr(query))
    assert [each.label for each in found.results] == [each.label for each in wanted.results]
    return wanted.counts.n_tokens_new - found.counts.n_tokens_new


@pytest.mark.parametrize("style", STYLES)
def test_only_what_is_new_is_fed(style: str, open_classifier: OpenClassifier) -> None:
    specs = STYLES[style][:2]  # of one fragment
    plain = open_classifier("qwen3", specs)
    kept = open_classifier("qwen3", specs, kept_queries=2)
    n_prefixes = len({prompt.prefix for prompt in kept.prompts})

    def n_alike(one: str, other: str) -> int:
        """Tokens that both begin with, after the part of the fragment that all queries have in common."""
        prompt, model = kept.prompts[0], kept.engine.model
        return common_prefix(*(prompt.fragment_tokens(model, each) for each in (one, other))) - len(prompt.stable)

    assert assert_alike(kept, plain, "red dress") == 0
    assert assert_alike(kept, plain, "red dress for girls") == n_prefixes * n_alike("red dress", "red dress for girls")
    assert assert_alike(kept, plain, "blue jeans") == 0
    assert assert_alike(kept, plain, "red dress for me") == n_prefixes * n_alike(
        "red dress for girls", "red dress for me"
    )
    assert assert_alike(kept, plain, "blue jeans") > 0
    assert assert_alike(kept, plain, "green") == 0  # which takes the place of the one that was asked longest ago
    assert assert_alike(kept, plain, "red dress") == 0


def test_each_query_of_a_turn_goes_on_from_its_own(open_classifier: OpenClassifier) -> None:
    """As if each were asked alone."""
    together, alone = (open_classifier("qwen3", SEPARATE, kept_queries=4) for _ in range(2))
    for turn in (
        ["red", "blue", "jeans", "👗"],
        ["red dress", "blue a", "jeans for", "👗 -"],
        ["red dresses", "👗 - red"],
    ):
        found = together.classify_batch(turn)[0].counts
        each = [alone.classify(query).counts for query in turn]
        assert found.n_tokens_new == sum(counts.n_tokens_new for counts in each)
        assert found.n_tokens_cached == sum(counts.n_tokens_cached for counts in each)
    assert together.engine.kept_queries is not None
    assert alone.engine.kept_queries is not None
    assert together.engine.kept_queries.n_found == alone.engine.kept_queries.n_found > 0


SMALL = {"n_batch": 48, "max_query_tokens": 24}
"""decodes that do not hold three usual queries of SEPARATE"""


def test_turns_of_several_decodes(open_classifier: OpenClassifier) -> None:
    """They go on from kept queries and are kept, except in slots that another query of the turn goes on from."""
    plain, kept = (open_classifier("qwen3", SEPARATE, **SMALL, kept_queries=n) for n in (0, 3))
    long = "q w e r t z u i o p a s"
    for turn, n_decodes, n_saved in (
        ([long], 2, 0),
        ([long + " a"], 1, 39),
        (["red dress", "blue", "jeans"], 2, 0),
        (["red dress for", "blue jeans", "jeans -"], 2, 12),
        (["red dress -", "red dress for me", "red", "jeans - 👗", "blue"], 4, 24),
        (["red dress for boys", "jeans - 👗", "blue"], 2, 30),
    ):
        found, wanted = kept.classify_batch(turn), [plain.classify(query) for query in turn]
        for each, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(scores(each), scores(other), rtol=0, atol=LARGEST_DIFFERENCE)
        counts = found[0].counts
        assert counts.n_decodes == n_decodes
        assert counts.n_tokens_new == sum(each.counts.n_tokens_new for each in wanted) - n_saved


def test_cells_do_not_run_out(open_classifier: OpenClassifier) -> None:
    """A cache without a cell to spare, full slots, and then the largest request."""
    n_most = 2 * MOST_TOKENS
    options = {"max_query_tokens": n_most, "question_cells": 0, "question_prefixes": 0}
    plain = open_classifier("qwen3", SEPARATE, **options)
    needed = plain.engine.context.n_batch + sum(len(prompt.prefix) for prompt in plain.prompts) + 3 * 3 * MOST_TOKENS
    kept = open_classifier("qwen3", SEPARATE, **options, kept_queries=3, n_ctx=needed)
    long = " ".join(str(n % 10) for n in range(MOST_TOKENS // 2 - 5))
    for turn in range(3):
        for letter in "abcd":
            assert_alike(kept, plain, letter + long)
        assert assert_alike(kept, plain, f"x{turn}" + long + long) == 0
        assert assert_alike(kept, plain, f"x{turn}" + long + long + "x") > 2 * MOST_TOKENS  # the first ones are kept
    with pytest.raises(ConfigError, match=r"runtime.n_ctx.*kept queries \(576\)"):
        open_classifier("qwen3", SEPARATE, **options, kept_queries=3, n_ctx=needed - 1)


def test_requests_find_the_graphs_of_the_start(open_classifier: OpenClassifier) -> None:
    kept = open_classifier("qwen3", SEPARATE, kept_queries=2, warm_query_tokens=6, n_shapes=16)
    for query in ("red", "red dress", "blue jeans for", "red dress for girls", "blue"):
        before = kept.engine.context.counters().n_graphs_reused
        kept.classify(query)
        assert kept.engine.context.counters().n_graphs_reused == before + 1, query


AROUND = [
    PromptSpec(name=name, template=f"<|im_start|>query: {{query}}{after}", labels=("red", "blue"))
    for name, after in (("one", "\ncolour:"), ("two", ". item:"))
]


def test_prompts_that_part_right_after_the_query_keep_none(open_classifier: OpenClassifier) -> None:
    with pytest.raises(ConfigError, match=r"kept_queries: 2, and prompts with the same tokens before the query"):
        open_classifier("qwen3", AROUND, kept_queries=2)


@pytest.mark.parametrize("place", ["fill", "share", "decode"])
def test_a_request_that_fails_leaves_right_answers(
    place: str, open_classifier: OpenClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its leaves have a kept query's cells by then: tokens are refused, or a native call is made and then fails."""
    plain, kept = (open_classifier("qwen3", SEPARATE, **SMALL, kept_queries=n) for n in (0, 2))
    turns = ["red dress for girls"], ["red dress for", "jeans - 👗", "blue"]
    call = getattr(kept.engine.context, place, None)
    for n in range(1, 4):
        left = iter(range(n - 1))

        def fails(*arguments: Any, left: Iterator[int] = left, **options: Any) -> Any:
            if call is None:
                return np.full_like(arguments[0].decode.plan.token, -1)
            answer = call(*arguments, **options)
            if next(left, None) is None:
                raise DecodeError("out of range")
            return answer

        for query in ("red dress", "jeans"):
            assert_alike(kept, plain, query)
        with monkeypatch.context() as patch:
            patch.setattr(Template if call is None else kept.engine.context, place, fails)
            with pytest.raises((PlanError, DecodeError), match="out of range"):
                list(map(kept.classify_batch, turns))
        for query in ("blue jeans", "red dress for girls"):
            assert_alike(kept, plain, query)
