"""Templates: the plan that a length gives is the one that the tokens give, or there is none."""

import random
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import OpenClassifier
from oracle import PromptSpec

from qcls_gguf import Classifier, PromptConfig
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
    templates = templates_of(classifier)
    additions = templates.additions(fragments)
    (decode,) = plan_decodes(additions, classifier.engine.capacity)
    filled = templates.filled(fragments)
    if filled is not None:
        assert_same(filled, decode)
    return all(each.fast_path for each in additions), filled is not None


def templates_of(classifier: Classifier) -> Templates:
    """Templates of its prompts, none made yet."""
    prompts, engine = classifier, classifier.engine
    holders = [prefix.holder for prefix in prompts.held]
    return Templates(prompts.compiled, holders, engine.capacity, engine.model.facts.n_vocab)


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


def test_texts_that_share_a_prefix_and_differ_behind_the_query_have_no_template(
    open_classifier: OpenClassifier,
) -> None:
    """Whether they share what follows depends on the query's own tokens."""
    prompts = [spec("a", "of {query} the colour is"), spec("b", "of {query} the name is")]
    classifier = open_classifier("qwen3", prompts)
    first, second = classifier.prompts
    assert first.prefix == second.prefix
    assert both(classifier, "red dress") == (True, False)
    assert [answer.fast_path for answer in classifier.classify("red dress").results] == [True, True]


def test_templates_of_long_texts_take_no_more_memory_than_is_allowed(
    open_classifier: OpenClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 1 << 19
    monkeypatch.setattr("qcls_gguf.plan.planner._MOST_BYTES", most)
    prompts = [spec(name, f"<|im_start|>the {name} of {{query}} is") for name in ("colour", "kind", "name")]
    classifier = open_classifier("qwen3", prompts)
    prompts_, n_vocab = classifier, classifier.engine.model.facts.n_vocab
    capacity = Capacity(n_seqs=256, n_tokens=1 << 20, n_rows=256)
    templates = Templates(prompts_.compiled, [prefix.holder for prefix in prompts_.held], capacity, n_vocab)
    tracemalloc.start()
    for n in range(2_000, 2_010):
        template = templates.of_query(n)
        assert template is not None
        assert template is templates.of_query(n)
    n_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert n_bytes < 1.5 * most


QUESTION = PromptConfig(name="q", prompt_template="of {query} the colour is", labels=("yes", "no", "not known"))


def test_what_several_queries_share_no_token_of_is_put_together(
    open_classifier: OpenClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the tree that their tokens give; where they share tokens, or fill more than a decode, it is left to that."""
    prompts = [spec("a", "of {query} the colour is"), spec("b", "a thing: {query}<|im_start|>colour"),
               spec("c", "a thing: {query}<|im_start|>hue")]  # fmt: skip
    classifier = open_classifier("qwen3", prompts, max_batch=6, n_batch=130)
    sets = [classifier, classifier.prompt_set([QUESTION])]
    n_joined = 0
    rng = random.Random(0)
    grown: list[object] = []

    def plan_grown(*each: Any) -> Any:
        grown.append(each)
        return plan_decodes(*each)

    monkeypatch.setattr("qcls_gguf.plan.planner.plan_decodes", plan_grown)
    words = ["red", "blue", "dress", "jeans", "for me", "👗", "1"]
    for _ in range(60):
        queries = [" ".join(rng.choices(words, k=rng.randint(1, 6))) for _ in range(rng.randint(2, 5))]
        items = [rng.choice([*sets, sets[0]]).tokenize(query) for query in queries]
        grown.clear()
        asked = [(item.handle.templates, item.fragments) for item in items]
        (decode, *_) = plan_request(asked)
        if grown:  # tokens are shared, or there are too many
            continue
        n_joined += 1
        alone = [plan_request([query])[0] for query in asked]
        additions = [addition for templates, fragments in asked for addition in templates.additions(fragments)]
        (wanted,) = plan_decodes(additions, classifier.engine.capacity)
        assert wanted.n_tokens == sum(each.n_tokens for each in alone), queries
        assert_same(decode, wanted)
        assert all(decode.fast_path)
    assert 15 < n_joined < 45
