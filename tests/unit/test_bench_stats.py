"""Requests of a benchmark, and the least tokens that they need against an obvious count."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from qcls_gguf.bench.workloads import least_tokens, requests_of
from qcls_gguf.prompts.compiled import Prompt
from qcls_gguf.prompts.trie import build_trie

PROPERTY = settings(deadline=None, max_examples=80, derandomize=True)
LABELS = ((1,), (2,)), ((1, 2), (1, 3), (4,)), ((1, 2, 3), (1, 2, 4), (1, 5))


def test_requests_cycle_through_the_queries() -> None:
    assert requests_of(["a", "b", "c"], 1) == [["a"], ["b"], ["c"]]
    assert requests_of(["a", "b", "c"], 2) == [["a", "b"], ["c", "a"], ["b", "c"]]


def prompt_of(head: tuple[int, ...], stable: tuple[int, ...], tail: tuple[int, ...], labels: int = 0) -> Prompt:
    tokens = LABELS[labels]
    texts = tuple(map(str, tokens))
    trie = build_trie(texts, tokens, end=9, scoring="tree")
    parts: dict[str, Any] = {"name": "p", "labels": texts, "label_tokens": tokens, "before": "", "after": ""}
    return Prompt(**parts, trie=trie, head=head, stable=stable, tail=tail)


SHORT = st.lists(st.integers(1, 2), max_size=3).map(tuple)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Prompt], list[list[list[int]]]]:
    prompts = draw(st.lists(st.builds(prompt_of, SHORT, SHORT, SHORT, st.integers(0, 2)), min_size=1, max_size=4))
    fragment = st.lists(st.integers(1, 2), min_size=1, max_size=4)
    queries = draw(st.lists(st.lists(fragment, min_size=len(prompts), max_size=len(prompts)), min_size=1, max_size=3))
    return prompts, queries


@PROPERTY
@given(cases())
def test_least_tokens_by_walking_every_label(case: tuple[list[Prompt], list[list[list[int]]]]) -> None:
    """A score of a label reads the state before each of its tokens at which labels part."""
    prompts, queries = case
    fed = set()
    for fragments in queries:
        for prompt, fragment in zip(prompts, fragments, strict=True):
            base = prompt.head + tuple(fragment) + prompt.tail
            for label in prompt.label_tokens:
                for n in range(len(label)):
                    if (
                        len({other[n] for other in prompt.label_tokens if other[:n] == label[:n] and len(other) > n})
                        > 1
                    ):
                        path = base + label[:n]
                        fed.add(path)
                        for end in range(1, len(path)):
                            if not any(other.prefix[:end] == path[:end] for other in prompts):
                                fed.add(path[:end])
    assert least_tokens(prompts, queries) == len(fed)
