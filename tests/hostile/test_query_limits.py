"""Queries of any length and content: answered by numbers, or refused before they cost time; others are not held up."""

import math
import random
import sys
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from hostile_rows import Row, sizes
from mutate import ODD, mutated
from waiting import occupied

from qcls_gguf import Classifier, Config, ConfigError, PlanError, PromptConfig, RuntimeConfig, load_config
from qcls_gguf.core.core import MAX_QUERIES

_MAX_TOKENS = 64
_MAX_BYTES = 32 * _MAX_TOKENS
_TEXTS = (
    *("red summer dress for girls", "孕妇连衣裙 棉 宽松", "\U0001f457\U0001f469\u200d\U0001f9b1 \U0001f1e9\U0001f1ea"),
    *("\u202edress\u202c", "e\u0301\u036b" * 9, "<|im_end|>", "</think>", "{query}{labels}", "\x1b]0;x\x07", "\0"),
)


@pytest.fixture(scope="module")
def classifier() -> Iterator[Classifier]:
    config = load_config(Path(__file__).parents[2] / "configs" / "fashion-8-joint.yaml")
    runtime = RuntimeConfig(n_threads=1, max_query_tokens=_MAX_TOKENS)
    with Classifier.from_config(Config(prompts=config.prompts, runtime=runtime)) as classifier:
        yield classifier


def _query(rng: random.Random) -> str:
    kind = rng.randrange(5)
    if kind == 0:
        return "".join(rng.choices(_TEXTS, k=rng.randint(1, 5)))
    if kind == 1:
        return "".join(chr(rng.randrange(sys.maxunicode + 1)) for _ in range(rng.randint(0, 30)))  # halves of pairs too
    if kind == 2:
        return rng.choice(["a", " ", "\n", "红", "0", "👗", "\0", "-"]) * int(10 ** rng.uniform(0, 6.5))
    text = " ".join(rng.choices(_TEXTS, k=3)).encode()
    return mutated(text, rng, ODD).decode(errors="surrogateescape")[: 2 * _MAX_BYTES]


@sizes(200, 25_000)
def test_a_query_is_answered_or_refused(row: Row, n: int, classifier: Classifier) -> None:
    row.name, row.n = "queries", n
    wanted = classifier.classify("red dress").results
    for case, rng in row.cases():
        query = _query(rng)
        try:
            result = classifier.classify(query)
        except PlanError as e:
            row.kinds["refused"] += 1
            row.check(len(str(e)) < 300 and str(e).isprintable(), f"seed {case}: {e!r}")
            continue
        except BaseException as e:
            row.wrong.append(f"seed {case}: {type(e).__name__}: {e}")
            continue
        row.kinds["answered"] += 1
        sums = [math.fsum(score.probability for score in answer.scores) for answer in result.results]
        row.check(len(query.encode()) <= _MAX_BYTES, f"seed {case}: {len(query.encode())} bytes were tokenised")
        row.check(all(abs(total - 1) < 1e-4 for total in sums), f"seed {case}: probabilities sum to {sums}")
        if case % 50 == 0:
            row.check(classifier.classify("red dress").results == wanted, f"seed {case}: the next answer changed")
    assert min(row.kinds["answered"], row.kinds["refused"]) > row.n // 10


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("红" * 1_000_000, "the query has 1000000 characters, more than 2048 bytes, 32 for each of"),
        ("红" * 700, "the query has 2100 bytes, more than 2048 bytes, 32 for each of"),
        (" " * 2049, "the query has 2049 characters, more than"),
        (b"red", "a query is text, not bytes: b'red'"),
        (None, "the query is missing: None is no text"),
        (float("nan"), "the query is missing: nan is no text"),
        (["red"], "a query is text, not list"),
        ("\udc80", "character 0 of the query is not valid Unicode"),
        ("red \ud800", "character 4 of the query is not valid Unicode"),
    ],
)
def test_what_is_no_query_is_refused_before_it_waits_for_its_turn(
    query: Any, message: str, classifier: Classifier
) -> None:
    before = classifier.classify("red dress").results
    with occupied(classifier.core.executor):  # nobody is served meanwhile
        with pytest.raises(PlanError) as refused:
            classifier.classify(query)
        assert str(refused.value).startswith(message)
        with pytest.raises(PlanError) as refused:
            classifier.classify_batch(["red", query])
        assert str(refused.value).startswith(f"queries[1]: {message}")
    assert classifier.classify("red dress").results == before


@pytest.mark.hostile  # it takes 9 GB
def test_a_query_of_more_bytes_than_an_int32_counts_is_refused(classifier: Classifier) -> None:
    data = bytearray(2**32 + 9)  # which would be 9 to who counts in 32 bits
    query = data.decode("ascii")
    del data
    with pytest.raises(PlanError, match="the query has 4294967305 characters, more than"):
        classifier.classify(query)


def test_the_limit_of_bytes_is_exact(classifier: Classifier) -> None:
    classifier.core.check([(None, query) for query in (" " * _MAX_BYTES, "", "红" * (_MAX_BYTES // 3))])
    for query in (" " * (_MAX_BYTES + 1), "红" * (_MAX_BYTES // 3 + 1)):
        with pytest.raises(PlanError, match=f"more than {_MAX_BYTES} bytes"):
            classifier.classify(query)


def test_too_many_queries_are_refused(classifier: Classifier) -> None:
    for queries in (["red"] * (MAX_QUERIES + 1), repeat("red")):
        with pytest.raises(PlanError, match=r"10001 queries in one call, at most 10000 are answered: ask in several"):
            classifier.classify_batch(queries)


@pytest.mark.parametrize("deadline_s", [math.nan, math.inf, -math.inf, 1e300, "5", 10**400])
def test_a_deadline_is_a_number_of_seconds(deadline_s: Any, classifier: Classifier) -> None:
    with pytest.raises(PlanError, match=r"^deadline_s: .* is not a number of seconds below 1e\+09"):
        classifier.classify("red", deadline_s=deadline_s)


def test_texts_of_a_configuration_have_a_limit() -> None:
    large = "x" * ((1 << 20) + 1)
    with pytest.raises(ConfigError, match=r"labels\[1\]: .* should have at most 1048576 characters"):
        PromptConfig(name="a", prompt_template="{query}", labels=("a", large))
    with pytest.raises(ConfigError, match="should have at most 10000 items, not 10001"):
        PromptConfig(name="a", prompt_template="{query}", labels=tuple(map(str, range(10_001))))
