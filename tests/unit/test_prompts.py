"""Texts that prompts share, descriptions of labels, and the trie of a prompt's labels."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from cases import cases
from hypothesis import assume, given
from hypothesis import strategies as st

from qcls_gguf import Config, ConfigError, PromptConfig
from qcls_gguf.config.load import parse_config
from qcls_gguf.config.schema import check_config
from qcls_gguf.config.scoring import Scoring
from qcls_gguf.prompts.trie import LabelTrie, build_trie, with_end_tokens

COLOUR = {"name": "colour", "labels": ["red", "blue"]}
SIZE = {"name": "size", "describe": "how large it is", "labels": ["small", "large"]}


def parsed(*prompts: dict[str, Any], **top: Any) -> Config:
    return parse_config(yaml.safe_dump({"prompts": prompts, **top}), folder=Path())


def refused(*prompts: dict[str, Any], **top: Any) -> str:
    with pytest.raises(ConfigError) as refusal:
        parsed(*prompts, **top)
    return re.sub(r"(?m)^line \d+: ", "", str(refusal.value))


def test_a_common_text_is_every_prompts_with_its_own_words() -> None:
    text = "{all_labels}\n{name} one of [{labels}]: {query}"
    colour, size = parsed(COLOUR, SIZE, prompt_template=text).prompts
    both = "colour: [red, blue]\nsize (how large it is): [small, large]\n"
    assert colour.expanded_template == both + "colour one of [red, blue]: {query}"
    assert size.expanded_template == both + "size one of [small, large]: {query}"


def test_a_prompts_own_text_goes_before_the_common_one() -> None:
    own = {**COLOUR, "prompt_template": "{query} own:"}
    assert [p.template for p in parsed(own, SIZE, prompt_template="{query}:").prompts] == ["{query} own:", "{query}:"]
    chat = {**COLOUR, "user": "{query}!"}
    found, other = parsed(chat, SIZE, prompt_template="{query}:").prompts
    assert (found.turns, other.template) == ({"user": "{query}!"}, "{query}:")
    found, other = parsed(chat, SIZE, system="S", user="{query}", answer_cue="{name}:").prompts
    assert (found.turns, found.cue) == ({"system": "S", "user": "{query}!"}, "{name}:")
    assert (other.turns, other.cue) == ({"system": "S", "user": "{query}"}, "{name}:")
    (found,) = parsed(own, system="S").prompts
    assert not found.is_chat


def test_labels_may_be_described() -> None:
    labels = {"dress": "in one piece", "none": None}
    text = "{labels} | {labels_described} | {all_labels} | {all_labels_described} {query}"
    (prompt,) = parsed({"name": "a", "labels": labels, "describe": "d"}, prompt_template=text).prompts
    assert prompt.expanded_template == (
        "dress, none | - dress: in one piece\n- none | a (d): [dress, none] | "
        "a (d):\n- dress: in one piece\n- none {query}"
    )
    described: dict[str, Any] = {"labels": ("dress", "none"), "label_descriptions": ("in one piece", None)}
    given = PromptConfig(name="a", describe="d", prompt_template=text, **described)
    assert Config(prompts=(given,)).prompts == (prompt,)
    (empty,) = parsed(COLOUR | {"labels": {"x": None, "y": None}}, prompt_template="{query}").prompts
    assert empty.label_descriptions is None


@cases(
    ({"prompt_template": "none"}, "prompt_template: has 0 {query} slots: it needs exactly one"),
    ({"prompt_template": "{text}:"}, "prompt_template: has 0 {query} slots: did you mean {query} by {text}?"),
    ({"prompt_template": "{query}", "system": "a"}, "system: is given beside prompt_template, which is"),
    ({"prompt_template": "{describe} {query}"}, "prompts.colour.describe: is missing, and prompt_template has"),
    ({"user": "x"}, "user: has 0 {query} slots: it needs exactly one"),
    ({}, "prompts.colour.prompt_template: is missing: write the whole text, or write system and user"),
)
def test_a_common_text_that_cannot_be_used_is_told_once(top: dict[str, Any], message: str) -> None:
    found = refused(COLOUR, **top)
    assert found.startswith(message)
    assert "\n" not in found


@cases(
    ({"labels": {"x": "a", "y": 1}}, "labels.y: 1 is a number, not text: describe the label"),
    ({"labels": {"x": "a", "y": "b"}, "label_descriptions": ["a"]}, "label_descriptions: is given beside labels"),
    ({"label_descriptions": ["a"]}, "label_descriptions: has 1 texts for 2 labels"),
    ({"describe": "{query}", "prompt_template": "{describe}{query}"}, "describe: '{query}' in place of the template's"),
    ({"labels": {"x": "{query}", "y": None}, "prompt_template": "{labels_described}{query}"}, "labels: "),
)
def test_descriptions_that_cannot_be_used_are_refused(prompt: dict[str, Any], message: str) -> None:
    assert refused({**COLOUR, "prompt_template": "{query}", **prompt}).startswith(f"prompts.colour.{message}")


def test_a_label_that_spells_a_slot_is_refused_where_all_labels_are_shown() -> None:
    message = refused({**COLOUR, "labels": ["{name}", "x"]}, SIZE, prompt_template="{all_labels} {query}")
    assert message.startswith("prompts[0]: a text of it makes another {name} slot in place of {all_labels}")


def test_the_slot_is_the_labels_in_their_order() -> None:
    two_words = COLOUR | {"labels": ["red", "light blue"]}
    (prompt,) = parsed(two_words, prompt_template="one of [{labels}]: {query}").prompts
    assert prompt.expanded_template == "one of [red, light blue]: {query}"
    assert prompt.prompt_template == "one of [{labels}]: {query}"
    swapped = prompt.changed(labels=("none", "dress"))
    assert swapped.expanded_template == "one of [none, dress]: {query}"
    assert check_config(Config(prompts=(swapped,))).prompts == (swapped,)


@pytest.mark.parametrize("label", ["{label}", "labels", "{", "{}", "%s", "\\1"])
def test_a_label_that_looks_like_a_slot_is_text(label: str) -> None:
    (prompt,) = parsed(COLOUR | {"labels": [label, "none"]}, prompt_template="of {labels}: {query}").prompts
    assert prompt.expanded_template == f"of {label}, none: {{query}}"


@cases(
    ("{labels} {labels} {query}", ["x", "y"], "prompt_template: has 2 {labels} slots: it may have one"),
    ("{labels} {query}", ["x", "a {query}"], "labels: 'a {query}' in place of the template's {labels} makes"),
    ("{labels} {query}", ["x", "{labels}"], "labels: '{labels}' in place of the template's {labels} makes another"),
    ("{query} {l{labels}", ["abels}", "x"], "labels: 'abels}' in place of the template's {labels} makes another"),
)
def test_slots_that_are_not_what_they_seem_are_refused(template: str, labels: list[str], message: str) -> None:
    prompt: dict[str, Any] = {"name": "a", "prompt_template": template, "labels": labels}
    assert refused(prompt).startswith(f"prompts.a.{message}")
    with pytest.raises(ConfigError, match=rf"prompts\.a\.{re.escape(message)}"):
        check_config(Config(prompts=(PromptConfig(**prompt),)))


END = 99

Tokens = tuple[int, ...]
label_tokens = st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple)
label_sets = st.lists(label_tokens, min_size=2, max_size=10, unique=True)


def names(tokens: list[Tokens]) -> list[str]:
    return ["-".join(map(str, path)) for path in tokens]


def trie_of(tokens: list[Tokens], end: int = END, scoring: Scoring = "tree") -> LabelTrie:
    return build_trie(names(tokens), tokens, end, scoring)


def node_paths(trie: LabelTrie) -> list[Tokens]:
    """The tokens from the end of the prompt to each node."""
    paths: list[Tokens] = [()]
    for parent, token in trie.fed:
        assert parent < len(paths)
        paths.append((*paths[parent], token))
    return paths


def children(paths: list[Tokens], node: Tokens) -> set[int]:
    return {path[len(node)] for path in paths if len(path) > len(node) and path[: len(node)] == node}


def forks(paths: list[Tokens]) -> set[Tokens]:
    """The beginnings after which labels differ."""
    beginnings = {path[:n] for path in paths for n in range(len(path))}
    return {beginning for beginning in beginnings if len(children(paths, beginning)) > 1}


@given(label_sets)
def test_a_trie_reads_the_forks_of_its_labels_and_feeds_what_leads_to_them(tokens: list[Tokens]) -> None:
    ended = with_end_tokens(names(tokens), tokens, END)
    for path, whole in zip(tokens, ended, strict=True):
        begins_another = any(other != path and other[: len(path)] == path for other in tokens)
        assert whole == ((*path, END) if begins_another else path)
    trie, forked = trie_of(tokens), forks(ended)
    nodes = node_paths(trie)
    assert ({nodes[node] for node in trie.read}, trie.read) == (forked, tuple(sorted(set(trie.read))))
    assert sorted(nodes) == sorted({(), *(path[:n] for path in forked for n in range(len(path) + 1))})
    assert trie.n_leaves == max(1, sum(not children(nodes, path) for path in nodes[1:]))
    for node in trie.read:  # whose children are its edges, in the order of the labels
        candidates = [edge.token for edge in trie.edges if edge.node == node]
        assert candidates == list(dict.fromkeys(p[len(nodes[node])] for p in ended if children([p], nodes[node])))
    assert all(a.node <= b.node for a, b in pairwise(trie.edges))
    assert {edge.node for edge in trie.edges} == set(trie.read)
    for path, edges in zip(ended, trie.label_edges, strict=True):  # one edge at each fork on a label's way
        expected = [path[: n + 1] for n in range(len(path)) if path[:n] in forked]
        assert [(*nodes[trie.edges[edge].node], trie.edges[edge].token) for edge in edges] == expected
        assert edges
    assert len(set(trie.label_edges)) == len(tokens)


@given(label_sets, st.integers(0, 3))
def test_an_end_token_that_continues_a_label_is_refused(tokens: list[Tokens], end: int) -> None:
    begun = {path for path in tokens if any(children([other], path) for other in tokens)}
    if any(end in children(tokens, path) for path in begun):
        with pytest.raises(ConfigError):
            trie_of(tokens, end)
    else:
        assert len(set(trie_of(tokens, end).label_edges)) == len(tokens)


@given(label_sets)
def test_first_token_scoring_feeds_nothing(tokens: list[Tokens]) -> None:
    assume(len({path[0] for path in tokens}) == len(tokens))
    trie = trie_of(tokens, -1, "first_token")
    assert (trie.fed, trie.read, trie.n_leaves, trie.scoring) == ((), (0,), 1, "first_token")
    assert [edge.token for edge in trie.edges] == [path[0] for path in tokens]
    assert {edge.node for edge in trie.edges} == {0}
    assert trie.label_edges == tuple((index,) for index in range(len(tokens)))


def test_labels_that_cannot_be_told_apart_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^labels 'grey' and 'gray' are the same tokens: keep one of them$"):
        build_trie(["grey", "red", "gray"], [(1, 2), (3,), (1, 2)], END, "tree")
    with pytest.raises(ConfigError, match=r"^label 'jump' is the beginning of another label.*set label_end$"):
        build_trie(["jumper", "jump"], [(1, 2), (1,)], -1, "tree")


def test_a_first_token_collision_names_both_labels_and_the_token() -> None:
    message = "labels 'light blue' and 'light pink' share their first token 17, so first_token scoring"
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        build_trie(["red", "light blue", "light pink"], [(4,), (17, 2), (17, 3)], END, "first_token")
