"""Queries of more tokens than are allowed: refused, or labelled by a part, exactly as that part is by itself."""

import json
from pathlib import Path
from unicodedata import normalize

import pytest
from commands import printed, refused
from conftest import MakeModel, OpenClassifier, WriteConfig
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import COLOR, PromptSpec

from qcls_gguf import Classifier, PlanError
from qcls_gguf.core.core import GAP

MOST = 12
PROMPTS = [COLOR, PromptSpec(name="item", template="the item of '{query}' is\n", labels=("dress", "none"))]
PIECES = st.sampled_from(
    ["red", " dress", "红色连衣裙", "👩🏽‍🦱", "e\u0301\u036b", " ", "\n\n", "<|im_end|>", "lig", "ht", "1234", "\0"]
)
QUERIES = (st.lists(PIECES, max_size=60).map("".join)) | st.text(st.characters(exclude_categories=["Cs"]), max_size=90)


@pytest.fixture(params=["bpe", "spm"])
def vocab(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["head", "tail", "middle"])
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def classifiers(
    how: str, vocab: str, make_model: MakeModel, open_classifier: OpenClassifier
) -> tuple[Classifier, Classifier]:
    """One that labels a part of long queries, and one that refuses them."""
    path = make_model(vocab=vocab)
    cutting = open_classifier(path, PROMPTS, max_query_tokens=MOST, long_queries=how)
    return cutting, open_classifier(path, PROMPTS, max_query_tokens=MOST)


def parts(how: str, query: str, n_cut: int) -> list[str]:
    """What may be left of a query without so many characters."""
    n_kept = len(query) - n_cut
    if how == "middle":
        return [query[:n] + GAP + query[n + n_cut :] for n in range(n_kept + 1)] + [""] * (n_kept == 0)
    return [query[:n_kept] if how == "head" else query[n_cut:]]


@given(query=QUERIES)
@settings(max_examples=150, derandomize=False, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_part_is_fed_as_it_is_by_itself(query: str, how: str, classifiers: tuple[Classifier, Classifier]) -> None:
    cutting, refusing = classifiers
    query = normalize("NFC", query)  # of which the characters are counted
    cut = cutting.tokenize(query)
    try:
        whole = refusing.tokenize(query)
    except PlanError:
        assert cut.n_chars_cut > 0
    else:
        assert cut.n_chars_cut == 0
        assert [each.tolist() for each in cut.fragments] == [each.tolist() for each in whole.fragments]
        return
    fed = [each.tolist() for each in cut.fragments]
    same = []
    for part in parts(how, query, cut.n_chars_cut):
        try:
            same.append([each.tolist() for each in refusing.tokenize(part).fragments] == fed)
        except PlanError:  # another part of as many characters may have more tokens
            same.append(False)
    assert any(same)


def test_the_part_is_as_long_as_is_allowed(how: str, vocab: str, classifiers: tuple[Classifier, Classifier]) -> None:
    cutting, refusing = classifiers
    query = " dress" * 40
    n_tokens = len(cutting.tokenize(query).fragments[0]) - len(refusing.tokenize("").fragments[0])
    n_lost = how == "head" and vocab == "spm"  # which puts a space before the first word
    assert n_tokens == MOST - n_lost
    for part in parts(how, query, cutting.classify(query).n_chars_cut):
        assert GAP in part or cutting.classify(query).results == refusing.classify(part).results


def test_every_way_in_says_what_was_left_out(how: str, classifiers: tuple[Classifier, Classifier]) -> None:
    cutting, refusing = classifiers
    long, huge = "red dress " * 20, "红" * 300_000
    first, second, third = cutting.classify_batch([long, "red", huge])
    assert first.query == long
    assert first.to_dict()["n_chars_cut"] == first.n_chars_cut > 100
    assert "n_chars_cut" not in second.to_dict()
    assert third.n_chars_cut > 299_900
    assert second.results == refusing.classify("red").results
    assert cutting.check(long).n_tokens_new == cutting.classify(long).counts.n_tokens_new
    with pytest.raises(PlanError, match=r"raise the limit \(`max_query_tokens`\), or label a part of it \(`long_q"):
        refusing.classify(long)


def test_commands_take_the_limit_and_count(write_config: WriteConfig, tmp_path: Path) -> None:
    config, table, out = write_config("qwen3", PROMPTS), tmp_path / "in.csv", tmp_path / "out.csv"
    limits = ["-c", config, "--max-query-tokens", 8, "--long-queries", "head"]
    long = "red dress " * 9
    table.write_text(f"query\nred\n{long}\n{long}\n")
    answer = json.loads(printed("run", "--quiet", "-q", long, "-f", "json", *limits))
    assert (answer["query"], answer["n_chars_cut"] > 0) == (long, True)
    assert "of a long query left out" in printed("run", "--quiet", "-q", long, *limits)
    cache = ["--cache", tmp_path / "cache", "--quiet", "--batch", 2]
    for words in (cache, [*cache, "--overwrite"]):  # computed, then from the cache
        record = json.loads(printed("label", table, "--out", out, *words, "--format", "json", *limits))
        assert (record["n_labelled"], record["n_cut"], record["n_found"]) == (3, 2, 2 * ("--overwrite" in words))
    assert "or label a part of it (--long-queries)" in refused("run", "-q", long, *limits[:4], code=1)
    assert "half" in refused("run", "-q", "x", "--long-queries", "half")
