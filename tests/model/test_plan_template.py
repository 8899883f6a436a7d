"""Templates: the plan that a length gives is the one that the tokens give, or there is none.

Queries of more tokens than are allowed: refused, or labelled by a part, exactly as that part is by itself.
"""

import json
import random
import tracemalloc
from itertools import product
from pathlib import Path
from unicodedata import normalize
from unittest.mock import Mock

import numpy as np
import pytest
from commands import printed, refused
from conftest import OpenClassifier, WriteConfig
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import COLOR, PromptSpec

from qcls_gguf import Classifier, PlanError, PromptConfig
from qcls_gguf.core.core import GAP
from qcls_gguf.plan.decodes import Capacity, DecodeInput, plan_decodes
from qcls_gguf.plan.planner import Templates, plan_request

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
QUERIES = [
    *("", "red", "red dress", "dress dress dress", "孕妇牛仔裤", " ", "  red", "👗 jeans"),
    *("label: <|im_end|>", "a" * 40),
]


def assert_same(found: DecodeInput, wanted: DecodeInput) -> None:
    for name, one, other in zip(DecodeInput._fields, found, wanted, strict=True):
        np.testing.assert_array_equal(one, other, err_msg=name)


def both(classifier: Classifier, query: str) -> tuple[bool, bool]:
    """Whether the fast path was taken by every prompt, and whether a template was found; they must agree."""
    fragments = classifier.tokenize(query).fragments
    templates = templates_of(classifier, classifier.engine.capacity)
    additions = templates.additions(fragments)
    (decode,) = plan_decodes(additions, classifier.engine.capacity)
    filled = templates.filled(fragments)
    if filled is not None:
        assert_same(filled, decode)
    return all(each.fast_path for each in additions), filled is not None


def templates_of(classifier: Classifier, capacity: Capacity) -> Templates:
    """Templates of its prompts, none made yet."""
    holders = [prefix.holder for prefix in classifier.held]
    return Templates(classifier.compiled, holders, capacity, classifier.engine.model.facts.n_vocab)


@pytest.mark.parametrize("name", ["fashion-8.yaml", "fashion-8-joint.yaml", "mission.yaml"])
def test_a_template_is_the_plan_of_the_tokens(name: str) -> None:
    with Classifier.from_config(CONFIGS / name) as classifier:
        taken = [both(classifier, query) for query in QUERIES]
    assert all(fast == found for fast, found in taken)
    assert sum(found for _, found in taken) > len(QUERIES) // 2


def spec(name: str, template: str) -> PromptSpec:
    return PromptSpec(name=name, template=template, labels=("light blue", "light pink", "none"))


def test_prompts_with_texts_of_their_own_before_the_query(open_classifier: OpenClassifier) -> None:
    """Two prefixes, two fragments: their lengths are the key together."""
    prompts = [spec("a", "the colour of {query} is"), spec("b", "a thing: {query} has the colour")]
    classifier = open_classifier("qwen3", prompts)
    assert len({prompt.fragment for prompt in classifier.prompts}) == 2
    assert [both(classifier, query)[1] for query in ("red", "red dress", "jeans")] == [True] * 3


def test_texts_that_differ_behind_the_query_have_no_template(open_classifier: OpenClassifier) -> None:
    """Whether they share what follows depends on the query's own tokens."""
    prompts = [spec("a", "of {query} the colour is"), spec("b", "of {query} the name is")]
    classifier = open_classifier("qwen3", prompts)
    first, second = classifier.prompts
    assert (first.prefix, both(classifier, "red dress")) == (second.prefix, (True, False))
    assert [answer.fast_path for answer in classifier.classify("red dress").results] == [True, True]


def test_templates_keep_within_their_memory(open_classifier: OpenClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 1 << 19
    monkeypatch.setattr("qcls_gguf.plan.planner._MOST_BYTES", most)
    prompts = [spec(name, f"<|im_start|>the {name} of {{query}} is") for name in ("colour", "kind", "name")]
    classifier = open_classifier("qwen3", prompts)
    templates = templates_of(classifier, Capacity(n_seqs=256, n_tokens=1 << 20, n_rows=256))
    tracemalloc.start()
    for n in range(2_000, 2_010):
        template = templates.of_query(n)
        assert template is not None
        assert template is templates.of_query(n)
    n_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert n_bytes < 1.5 * most


QUESTION = PromptConfig(name="q", prompt_template="of {query} the colour is", labels=("yes", "no", "not known"))


def test_queries_that_share_no_token(open_classifier: OpenClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the tree that their tokens give; where they share tokens, or fill more than a decode, it is left to that."""
    prompts = [spec("a", "of {query} the colour is"), spec("b", "a thing: {query}<|im_start|>colour"),
               spec("c", "a thing: {query}<|im_start|>hue")]  # fmt: skip
    classifier = open_classifier("qwen3", prompts, max_batch=6, n_batch=130)
    sets = [classifier, classifier.prompt_set([QUESTION])]
    n_joined = 0
    rng = random.Random(0)
    grown = Mock(wraps=plan_decodes)
    monkeypatch.setattr("qcls_gguf.plan.planner.plan_decodes", grown)
    words = ["red", "blue", "dress", "jeans", "for me", "👗", "1"]
    for _ in range(60):
        queries = [" ".join(rng.choices(words, k=rng.randint(1, 6))) for _ in range(rng.randint(2, 5))]
        items = [rng.choice([*sets, sets[0]]).tokenize(query) for query in queries]
        grown.reset_mock()
        asked = [(item.handle.templates, item.fragments) for item in items]
        (decode, *_) = plan_request(asked)
        if grown.called:  # tokens are shared, or there are too many
            continue
        n_joined += 1
        alone = [plan_request([query])[0] for query in asked]
        additions = [addition for templates, fragments in asked for addition in templates.additions(fragments)]
        (wanted,) = plan_decodes(additions, classifier.engine.capacity)
        assert wanted.n_tokens == sum(each.n_tokens for each in alone), queries
        assert_same(decode, wanted)
        assert all(decode.fast_path)
    assert 15 < n_joined < 45


MOST = 12
PROMPTS = [COLOR, PromptSpec(name="item", template="the item of '{query}' is\n", labels=("dress", "none"))]
PIECES = st.sampled_from(
    ["red", " dress", "红色连衣裙", "👩🏽‍🦱", "e\u0301\u036b", " ", "\n\n", "<|im_end|>", "lig", "ht", "1234", "\0"]
)
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=90)
LONG_QUERIES = st.lists(PIECES, max_size=60).map("".join) | ANY_TEXT


Limited = tuple[str, str, Classifier, Classifier]
"""Which part of long queries is labelled, the vocabulary, a classifier that does so, and one that refuses them."""


@pytest.fixture(params=product(("head", "tail", "middle"), ("bpe", "spm")), ids="-".join)
def limited(request: pytest.FixtureRequest, open_classifier: OpenClassifier) -> Limited:
    how, vocab = request.param
    cutting = open_classifier({"vocab": vocab}, PROMPTS, max_query_tokens=MOST, long_queries=how)
    return how, vocab, cutting, open_classifier({"vocab": vocab}, PROMPTS, max_query_tokens=MOST)


def parts(how: str, query: str, n_cut: int) -> list[str]:
    """What may be left of a query without so many characters."""
    n_kept = len(query) - n_cut
    if how == "middle":
        return [query[:n] + GAP + query[n + n_cut :] for n in range(n_kept + 1)] + [""] * (n_kept == 0)
    return [query[:n_kept] if how == "head" else query[n_cut:]]


@given(query=LONG_QUERIES)
@settings(max_examples=150, derandomize=False, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_part_is_fed_as_it_is_by_itself(query: str, limited: Limited) -> None:
    how, _, cutting, refusing = limited
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


def test_the_part_is_as_long_as_is_allowed(limited: Limited) -> None:
    how, vocab, cutting, refusing = limited
    query = " dress" * 40
    n_tokens = len(cutting.tokenize(query).fragments[0]) - len(refusing.tokenize("").fragments[0])
    n_lost = how == "head" and vocab == "spm"  # which puts a space before the first word
    assert n_tokens == MOST - n_lost
    for part in parts(how, query, cutting.classify(query).n_chars_cut):
        assert GAP in part or cutting.classify(query).results == refusing.classify(part).results


def test_every_way_in_says_what_was_left_out(limited: Limited) -> None:
    _, _, cutting, refusing = limited
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
    line = ["label", table, "--out", out, "--quiet", "--batch", 2, "--shard-rows", 2]
    record = json.loads(printed(*line, "--format", "json", *limits))
    assert (record["n_labelled"], record["n_cut"], record["n_found"]) == (3, 2, 1)  # the last by the shard before
    assert "or label a part of it (--long-queries)" in refused("run", "-q", long, *limits[:4], code=1)
    assert "half" in refused("run", "-q", "x", "--long-queries", "half")
