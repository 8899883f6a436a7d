"""Templates: the plan that a length gives is the one that the tokens give, or there is none."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import numpy as np
import pytest
from conftest import MakeModel, OpenClassifier
from oracle import PromptSpec

from qcls_gguf import Classifier, PromptConfig
from qcls_gguf.decodes import _alone, _side_by_side, additions_of_item
from qcls_gguf.plan.planner import Capacity, additions_of, plan_decodes
from qcls_gguf.plan.templates import Templates

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
QUERIES = [
    "",
    "red",
    "red dress",
    "dress dress dress",
    "孕妇牛仔裤",
    " ",
    "  red",
    "👗 jeans",
    "label: <|im_end|>",
    "a" * 40,
]


def both(classifier: Classifier, query: str) -> tuple[bool, bool]:
    """Whether the fast path was taken by every prompt, and whether a template was found; they must agree."""
    engine, active = classifier.engine, classifier.configured.active
    prompts = active.prompts.prompts
    by_text = {
        (before, after): engine.model.tokenize(before + query + after, parse_special=False)
        for before, after in active.prompts.fragments
    }
    additions = additions_of(prompts, active.holders, [by_text[prompt.fragment].tolist() for prompt in prompts])
    (decode,) = plan_decodes(additions, engine.capacity)
    templates = templates_of(classifier)
    behind = templates.behind(list(by_text.values()))
    template = None if behind is None else templates.of_lengths(tuple(map(len, behind)))
    if behind is not None and template is not None:
        np.testing.assert_array_equal(template.fill(behind), decode.plan.token)
        for name in ("pos", "seq_offset", "seq_id", "output", "node_row"):
            np.testing.assert_array_equal(getattr(template.decode.plan, name), getattr(decode.plan, name), err_msg=name)
        np.testing.assert_array_equal(template.decode.rows, decode.rows)
        assert template.decode.leaf_roots == decode.leaf_roots
        assert template.n_prompts == len(additions)
        assert template.n_cached == sum(each.root.n_cached for each in additions)
    return all(each.fast_path for each in additions), template is not None


def templates_of(classifier: Classifier) -> Templates:
    """Templates of its prompts, none made yet."""
    active, engine = classifier.configured.active, classifier.engine
    return Templates(active.prompts, active.holders, engine.capacity, engine.model.facts.n_vocab)


@pytest.mark.parametrize("name", ["fashion-8.yaml", "fashion-8-joint.yaml", "mission.yaml"])
def test_a_template_is_the_plan_of_the_tokens(name: str) -> None:
    with Classifier.from_config(CONFIGS / name) as classifier:
        taken = [both(classifier, query) for query in QUERIES]
    assert all(fast == found for fast, found in taken)
    assert sum(found for _, found in taken) > len(QUERIES) // 2


def spec(name: str, template: str) -> PromptSpec:
    return PromptSpec(name=name, template=template, labels=("light blue", "light pink", "none"))


def test_prompts_with_texts_of_their_own_before_the_query(
    make_model: MakeModel, open_classifier: OpenClassifier
) -> None:
    """Two prefixes, two fragments: their lengths are the key together."""
    prompts = [spec("a", "the colour of {query} is"), spec("b", "a thing: {query} has the colour")]
    classifier = open_classifier(make_model(), prompts)
    assert len({prompt.fragment for prompt in classifier.prompts}) == 2
    assert [both(classifier, query)[1] for query in ("red", "red dress", "jeans")] == [True] * 3


def test_texts_that_share_a_prefix_and_differ_behind_the_query_have_no_template(
    make_model: MakeModel, open_classifier: OpenClassifier
) -> None:
    """Whether they share what follows depends on the query's own tokens."""
    prompts = [spec("a", "of {query} the colour is"), spec("b", "of {query} the name is")]
    classifier = open_classifier(make_model(), prompts)
    first, second = classifier.prompts
    assert first.prefix == second.prefix
    assert both(classifier, "red dress") == (True, False)
    assert [answer.fast_path for answer in classifier.classify("red dress").results] == [True, True]


def test_templates_are_kept(make_model: MakeModel, open_classifier: OpenClassifier) -> None:
    classifier = open_classifier(make_model(), [spec("a", "<|im_start|>the colour of {query} is")])
    templates = templates_of(classifier)
    assert templates.of_lengths((3,)) is templates.of_lengths((3,))
    assert templates.of_lengths((3,)) is not templates.of_lengths((4,))


def test_templates_of_long_texts_take_no_more_memory_than_is_allowed(
    make_model: MakeModel, open_classifier: OpenClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 4 << 20
    monkeypatch.setattr("qcls_gguf.plan.templates._MOST_BYTES", most)
    prompts = [spec(name, f"<|im_start|>the {name} of {{query}} is") for name in ("colour", "kind", "name")]
    classifier = open_classifier(make_model(), prompts)
    active, n_vocab = classifier.configured.active, classifier.engine.model.facts.n_vocab
    capacity = Capacity(n_seqs=256, n_tokens=1 << 20, n_rows=256)
    templates = Templates(active.prompts, active.holders, capacity, n_vocab)
    asked = 0
    for n in range(2_000, 2_050):
        template = templates.of_query(n)
        assert template is not None
        assert template is templates.of_query(n)
        asked += bytes_of(template)
        assert sum(bytes_of(each) for each in templates._kept.values()) <= most
    assert asked > 2 * most


def bytes_of(value: object) -> int:
    """What a template's arrays and lists of tokens take, wherever they are in it."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if dataclasses.is_dataclass(value):
        return sum(bytes_of(getattr(value, each.name)) for each in dataclasses.fields(value))
    if isinstance(value, list | tuple):
        return 8 * len(value) + sum(map(bytes_of, value))
    return 0


QUESTION = PromptConfig(name="q", prompt_template="of {query} the colour is", labels=("yes", "no", "not known"))


@pytest.mark.parametrize("n_kept", [0, 3])
def test_what_several_queries_share_no_token_of_is_put_together(
    n_kept: int, make_model: MakeModel, open_classifier: OpenClassifier
) -> None:
    """As the tree that their tokens give; where they share tokens, or fill more than a decode, it is left to that."""
    prompts = [spec("a", "of {query} the colour is"), spec("b", "a thing: {query}<|im_start|>colour"),
               spec("c", "a thing: {query}<|im_start|>hue")]  # fmt: skip
    classifier = open_classifier(make_model(), prompts, kept_queries=n_kept, max_batch=6, n_batch=130)
    engine, pipeline = classifier.engine, classifier._requests._pipeline
    sets = [classifier.configured.active, classifier.prompt_set([QUESTION]).active]
    rng, n_joined = random.Random(0), 0
    words = ["red", "blue", "dress", "jeans", "for me", "👗", "1"]
    for _ in range(60):
        queries = [" ".join(rng.choices(words, k=rng.randint(1, 6))) for _ in range(rng.randint(2, 5))]
        items = [pipeline.tokenize((rng.choice([*sets, sets[0]]), query)) for query in queries]
        templates = [each.item[0].templates for each in items]
        behind = [each.behind(item.fragments) for each, item in zip(templates, items, strict=True)]
        asked = list(zip([each.layout for each in templates], behind, strict=True))
        found = engine.kept_queries.find(asked) if engine.kept_queries else [None] * len(items)
        joined = _side_by_side(templates, behind, found, engine.capacity)
        additions = [each for item, go_on in zip(items, found, strict=True) for each in additions_of_item(item, go_on)]
        decodes = plan_decodes(additions, engine.capacity)
        alone = [_alone(*each) for each in zip(templates, behind, found, strict=True)]
        n_alone = sum(each.plans[0].plan.n_tokens for each in alone if each)
        is_apart = len(decodes) == 1 and decodes[0].plan.n_tokens == n_alone
        assert (joined is not None) == is_apart, queries
        if joined:
            n_joined += 1
            (decode,), (wanted,) = joined.plans, decodes
            for name in ("token", "pos", "seq_offset", "seq_id", "output", "node_row"):
                one, other = getattr(decode.plan, name), getattr(wanted.plan, name)
                assert one.dtype == other.dtype
                np.testing.assert_array_equal(one, other, err_msg=name)
            np.testing.assert_array_equal(decode.rows, wanted.rows)
            assert (decode.leaf_roots, decode.n_passes) == (wanted.leaf_roots, 1)
            assert joined.n_cached == sum(addition.root.n_cached for addition in additions)
            assert joined.fast_path == [True] * len(additions)
        for each in found:
            for left in each.kept([{root.holder: 0 for root in each.layout.roots}])[0] if each else ():
                left.slot.fragments = left.fragments  # as if it were decoded
    assert 15 < n_joined < 45
