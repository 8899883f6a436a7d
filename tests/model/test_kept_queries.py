"""Queries that go on from a kept one: answers as without, only what is new is fed, and cells that are never lost."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from conftest import MakeModel, OpenClassifier
from interrupts import interrupted_behind
from oracle import COLOR, PromptSpec

from qcls_gguf import Classifier, ConfigError, PlanError, PromptConfig, Result
from qcls_gguf.plan.kept_queries import MOST_TOKENS
from qcls_gguf.plan.templates import Template
from qcls_gguf.prompts.compiled import common_prefix

SEPARATE = [
    COLOR,
    PromptSpec(name="item", template="<|im_start|>what is {query}\nlabel:", labels=("dress", "jeans", "none")),
    PromptSpec(name="who", template="Text: {query}.\nFor:", labels=("boy", "girl", "grown-up woman"), scoring="joint"),
]
JOINT = [
    PromptSpec(name=name, template=f"label {{query}}<|im_end|>\n{name}:", labels=("red", "blue", "dark blue"))
    for name in ("one", "two", "three")
]
STYLES = {"separate": SEPARATE, "joint": JOINT}
LARGEST_DIFFERENCE = 1e-4
"""of log-probabilities. Measured: 0, on processors with AMX and without"""
WORDS = ["red", "blue", "dress", "jeans", "for", "girls", "👗", "连衣裙", "nike air", "a" * 9, "<|im_end|>", " ", "-"]


def scores(result: Result) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([score.score for answer in result.results for score in answer.scores])


def assert_alike(kept: Classifier, plain: Classifier, query: str) -> int:
    """That both answer alike; returns how many tokens were not fed because they are kept."""
    found, wanted = kept.classify(query), plain.classify(query)
    np.testing.assert_allclose(scores(found), scores(wanted), rtol=0, atol=LARGEST_DIFFERENCE, err_msg=repr(query))
    assert [each.label for each in found.results] == [each.label for each in wanted.results]
    return wanted.counts.n_tokens_new - found.counts.n_tokens_new


def typed(seed: int, n: int) -> Iterator[str]:
    """Queries as several people type them: letters and words added, letters taken back, begun anew."""
    rng = random.Random(seed)
    texts = ["", "", ""]
    for _ in range(n):
        who = rng.randrange(len(texts))
        what, text = rng.random(), texts[who]
        if what < 0.5:
            text += rng.choice([" ", ""]) + rng.choice(WORDS)
        elif what < 0.7:
            text += rng.choice("abcdefg ")
        elif what < 0.9:
            text = text[: -rng.randint(1, 5)]
        else:
            text = ""
        texts[who] = text[-90:]
        yield texts[who]


@pytest.mark.parametrize("n_kept", [1, 3])
@pytest.mark.parametrize("weight_type", ["F32", "Q8_0"])
@pytest.mark.parametrize("style", STYLES)
def test_answers_are_those_of_queries_computed_whole(
    style: str, weight_type: str, n_kept: int, make_model: MakeModel, open_classifier: OpenClassifier
) -> None:
    path = make_model("qwen3", weight_type=weight_type)
    plain = open_classifier(path, STYLES[style], max_query_tokens=96)
    kept = open_classifier(path, STYLES[style], max_query_tokens=96, kept_queries=n_kept, question_cells=0)
    n_saved = sum(assert_alike(kept, plain, query) for query in typed(n_kept, 120))
    assert kept.engine.kept_queries is not None
    assert n_saved == kept.engine.kept_queries.n_found > 0


@pytest.mark.parametrize("style", STYLES)
def test_only_what_is_new_is_fed(style: str, make_model: MakeModel, open_classifier: OpenClassifier) -> None:
    specs = STYLES[style][:2]  # of one fragment
    plain = open_classifier(make_model(), specs)
    kept = open_classifier(make_model(), specs, kept_queries=2)
    n_prefixes = len({prompt.prefix for prompt in kept.prompts})

    def n_alike(one: str, other: str) -> int:
        """Tokens that both begin with, behind the part of the fragment that all queries have in common."""
        tokenize = kept.engine.model.tokenize
        prompt = kept.prompts[0]
        tokens = [
            tokenize(prompt.before + query + prompt.after, parse_special=False).tolist() for query in (one, other)
        ]
        return common_prefix(*tokens) - len(prompt.stable)

    assert assert_alike(kept, plain, "red dress") == 0
    assert assert_alike(kept, plain, "red dress for girls") == n_prefixes * n_alike("red dress", "red dress for girls")
    assert assert_alike(kept, plain, "blue jeans") == 0
    assert assert_alike(kept, plain, "red dress for me") == n_prefixes * n_alike(
        "red dress for girls", "red dress for me"
    )
    assert assert_alike(kept, plain, "blue jeans") > 0
    assert assert_alike(kept, plain, "green") == 0  # which takes the place of the one that was asked longest ago
    assert assert_alike(kept, plain, "red dress") == 0


QUESTION = PromptConfig(name="q", prompt_template="<|im_start|>other {query}\nlabel:", labels=("yes", "no"))


@pytest.mark.parametrize("n_kept", [1, 4])
@pytest.mark.parametrize("style", STYLES)
def test_queries_that_share_a_decode(
    style: str, n_kept: int, make_model: MakeModel, open_classifier: OpenClassifier
) -> None:
    """Several people's queries in random turns, equal ones, more than there are slots, and another prompt set's."""
    path = make_model("qwen3", weight_type="F32")
    options = {"max_query_tokens": 96, "question_cells": 64, "question_prefixes": 1, "max_batch": 6}
    classifiers = [open_classifier(path, STYLES[style], **options, kept_queries=n) for n in (0, n_kept)]
    sets = [(each.configured, each.prompt_set([QUESTION])) for each in classifiers]
    rng, texts = random.Random(n_kept), typed(n_kept, 240)
    n_saved = n_shared = 0
    while turn := [(rng.random() < 0.1, text) for text, _ in zip(texts, range(rng.randint(1, 6)), strict=False)]:
        turn += rng.sample(turn, rng.randint(0, 1))
        plain, kept = (
            each.classify_pairs([(own[is_other], text) for is_other, text in turn])
            for each, own in zip(classifiers, sets, strict=True)
        )
        for found, wanted, (_, text) in zip(kept, plain, turn, strict=True):
            np.testing.assert_allclose(scores(found), scores(wanted), rtol=0, atol=LARGEST_DIFFERENCE, err_msg=text)
        n_saved += plain[0].counts.n_tokens_new - kept[0].counts.n_tokens_new
        n_shared += len({text for _, text in turn}) > 1
    assert n_saved > 0
    assert n_shared > 20


def test_each_query_of_a_turn_goes_on_from_its_own(make_model: MakeModel, open_classifier: OpenClassifier) -> None:
    """As if each were asked alone."""
    together, alone = (open_classifier(make_model(), SEPARATE, kept_queries=4) for _ in range(2))
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


def test_callers_that_share_decodes(make_model: MakeModel, open_classifier: OpenClassifier) -> None:
    """Four threads that each type a query, where waiting callers share the next decode."""
    path = make_model("qwen3", weight_type="F32")
    plain, kept = (open_classifier(path, JOINT, kept_queries=n) for n in (0, 4))
    texts = [[f"{who}{' red' * n}" for n in range(20)] for who in ("red dress", "blue", "jeans", "red shoes")]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda queries: [kept.classify(query) for query in queries], texts))
    for queries, found in zip(texts, answers, strict=True):
        for query, each in zip(queries, found, strict=True):
            np.testing.assert_allclose(scores(each), scores(plain.classify(query)), rtol=0, atol=LARGEST_DIFFERENCE)
    assert max(each.counts.n_queries for found in answers for each in found) > 1
    assert kept.engine.kept_queries is not None
    assert kept.engine.kept_queries.n_found > 0


SMALL = {"n_batch": 48, "max_query_tokens": 24}
"""decodes that do not hold three usual queries of SEPARATE"""


def test_turns_of_several_decodes(make_model: MakeModel, open_classifier: OpenClassifier) -> None:
    """They go on from kept queries and are kept, except in slots that another query of the turn goes on from."""
    plain, kept = (open_classifier(make_model(), SEPARATE, **SMALL, kept_queries=n) for n in (0, 3))
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


def test_cells_do_not_run_out(make_model: MakeModel, open_classifier: OpenClassifier) -> None:
    """A cache without a cell to spare, full slots, and then the largest request."""
    n_most = 2 * MOST_TOKENS
    options = {"max_query_tokens": n_most, "question_cells": 0, "question_prefixes": 0}
    plain = open_classifier(make_model(), SEPARATE, **options)
    needed = plain.engine.context.n_batch + sum(len(prompt.prefix) for prompt in plain.prompts) + 3 * 3 * MOST_TOKENS
    kept = open_classifier(make_model(), SEPARATE, **options, kept_queries=3, n_ctx=needed)
    long = " ".join(str(n % 10) for n in range(MOST_TOKENS // 2 - 5))
    for turn in range(3):
        for letter in "abcd":
            assert_alike(kept, plain, letter + long)
        assert assert_alike(kept, plain, f"x{turn}" + long + long) == 0
        assert assert_alike(kept, plain, f"x{turn}" + long + long + "x") > 2 * MOST_TOKENS  # the first ones are kept
    with pytest.raises(ConfigError, match=r"runtime.n_ctx.*kept queries \(576\)"):
        open_classifier(make_model(), SEPARATE, **options, kept_queries=3, n_ctx=needed - 1)


def test_whatever_comes_between(make_model: MakeModel, open_classifier: OpenClassifier) -> None:
    """Batches, prompt sets at run time, an emptied cache, and callers of several threads."""
    path = make_model("qwen3", weight_type="F32")
    plain, kept = (open_classifier(path, SEPARATE, kept_queries=n) for n in (0, 2))

    def assert_batch(queries: Sequence[str]) -> None:
        for found, wanted in zip(kept.classify_batch(queries), plain.classify_batch(queries), strict=True):
            np.testing.assert_allclose(scores(found), scores(wanted), rtol=0, atol=LARGEST_DIFFERENCE)

    assert_alike(kept, plain, "red")
    assert_batch(["red dress", "red jeans", "blue"])
    assert assert_alike(kept, plain, "red dress") > 0
    with kept.prompt_set([QUESTION]) as loaded, plain.prompt_set([QUESTION]) as wanted:
        np.testing.assert_allclose(
            scores(loaded.classify("red dress")), scores(wanted.classify("red dress")), rtol=0, atol=LARGEST_DIFFERENCE
        )
    assert assert_alike(kept, plain, "red dress for") > 0
    kept.engine.restore()
    assert assert_alike(kept, plain, "red dress for") == 0
    assert assert_alike(kept, plain, "red dress for girls") > 0
    texts = [f"{word}{' red' * n}" for n in range(12) for word in ("red", "blue", "jeans")]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(kept.classify, texts))
    for text, each in zip(texts, found, strict=True):
        np.testing.assert_allclose(scores(each), scores(plain.classify(text)), rtol=0, atol=LARGEST_DIFFERENCE)


def test_long_texts_behind_the_query(make_model: MakeModel, open_classifier: OpenClassifier) -> None:
    specs = [
        replace(spec, template=spec.template.replace("\nlabel:", " it is" * 40 + "\nlabel:")) for spec in SEPARATE[:2]
    ]
    plain, kept = (open_classifier(make_model(), specs, kept_queries=n) for n in (0, 2))
    for query in ("red", "blue jeans", "red dress", "red dress for", "red dress for girls"):
        n_saved = assert_alike(kept, plain, query)
    assert n_saved > 0


def test_requests_find_the_graphs_of_the_start(make_model: MakeModel, open_classifier: OpenClassifier) -> None:
    kept = open_classifier(make_model(), SEPARATE, kept_queries=2, warm_query_tokens=6, n_shapes=16)
    for query in ("red", "red dress", "blue jeans for", "red dress for girls", "blue"):
        before = kept.engine.context.counters().n_graphs_reused
        kept.classify(query)
        assert kept.engine.context.counters().n_graphs_reused == before + 1, query


def test_texts_that_differ_around_the_query_cannot_have_it(
    make_model: MakeModel, open_classifier: OpenClassifier
) -> None:
    specs = [
        PromptSpec(name=name, template=f"<|im_start|>query: {{query}}{after}", labels=("red", "blue"))
        for name, after in (("one", "\ncolour:"), ("two", ". item:"))
    ]
    with pytest.raises(
        ConfigError, match=r"runtime.kept_queries: 1, and prompts with the same tokens before the query"
    ):
        open_classifier(make_model(), specs, kept_queries=1)


def test_too_many_are_named_in_the_refusal(make_model: MakeModel, open_classifier: OpenClassifier) -> None:
    with pytest.raises(
        ConfigError, match=r"kept queries 180, more than runtime.n_seq_max: 100: .*lower runtime.kept_q"
    ):
        open_classifier(make_model(), SEPARATE, kept_queries=60, n_seq_max=100)
    with pytest.raises(ConfigError, match=r"runtime.n_batch: 120 is less.*or lower max_query_tokens, kept_queries or"):
        open_classifier(make_model(), SEPARATE, kept_queries=60, n_batch=120)


def test_a_model_with_states_cannot_have_it(make_model: MakeModel, open_classifier: OpenClassifier) -> None:
    with pytest.raises(ConfigError, match=r"runtime.kept_queries: 2, and .* has recurrent layers.*set it to 0"):
        open_classifier(make_model("lfm2"), SEPARATE, kept_queries=2)


def test_a_decode_that_is_refused_leaves_right_answers(
    make_model: MakeModel, open_classifier: OpenClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its leaves have a kept query's cells by then."""
    plain, kept = (open_classifier(make_model(), SEPARATE, kept_queries=n) for n in (0, 2))
    assert_alike(kept, plain, "red dress")
    with monkeypatch.context() as patch:
        patch.setattr(Template, "fill", lambda template, behind: np.full_like(template.decode.plan.token, -1))
        with pytest.raises(PlanError, match="out of range"):
            kept.classify("red dress for girls")
    assert_alike(kept, plain, "blue jeans")


@pytest.mark.parametrize("options", [{}, SMALL])
@pytest.mark.parametrize("place", ["trim", "share", "decode"])
def test_an_interrupt_anywhere_leaves_right_answers(
    place: str,
    options: dict[str, int],
    make_model: MakeModel,
    open_classifier: OpenClassifier,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The native call is made, then the interrupt comes, at each call of requests that go on from each other."""
    plain, kept = (open_classifier(make_model(), SEPARATE, **options, kept_queries=n) for n in (0, 2))
    n, has_come = 0, True
    while has_come:
        n += 1
        with interrupted_behind(kept.engine.context, place, n, monkeypatch) as calls:
            for queries in (["red"], ["red dress"], ["blue"], ["red dress for", "blue jeans", "red"], ["red jeans"]):
                kept.classify_batch(queries)
        has_come = calls.left <= 0
        for query in ("red dress for girls", "red jeans", "blue"):
            assert_alike(kept, plain, query)
    assert n > 4
