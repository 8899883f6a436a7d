"""What an inspection advises: sentences with the numbers that they follow from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ..config.scoring import TREE
from ..config.words import counted
from .records import Advice, PromptInspection, Request, TrieNode

_SAVING = 0.8
"""One text for all prompts is advised where an empty query would feed at most this share of its tokens, one more decode
of a model with states counted as tokens."""
_LONG_SUFFIX = 6
"""The suffix is mentioned where a request feeds this many tokens of it for each prompt, or more."""
_N_NAMED = 10
"""Labels that a sentence names; of the others it gives the number."""


def advise(prompts: Sequence[PromptInspection], templates: Sequence[str], request: Request) -> tuple[Advice, ...]:
    """Advice on all prompts together, then on each; templates[i] is that of prompts[i]."""
    advice = [*_reorder(prompts, request), *_suffix(prompts, request)]
    for prompt, template in zip(prompts, templates, strict=True):
        advice += [*_collisions(prompt), *_missing(prompt, template)]
    return tuple(advice)


def _reorder(prompts: Sequence[PromptInspection], request: Request) -> Iterator[Advice]:
    now, then = counted(request.n_tokens, "token"), counted(request.n_tokens_one_text, "token")
    dearer = request.pass_tokens or 0  # the common tokens would take a decode of their own
    if request.n_query_copies > 1 and request.n_tokens_one_text + dearer <= _SAVING * request.n_tokens:
        price = f", by one decode more, which takes as long as about {dearer} tokens" if dearer else ""
        yield Advice(
            kind="reorder",
            prompts=_names(prompts),
            text=f"An empty query feeds {now}, and every token of a query is fed {request.n_query_copies} times. With "
            f"one text for all prompts that differs only in its last tokens (`{prompts[0].name}:`), an empty query "
            f"would feed about {then}, and every token of a query would be fed once{price}. Measure whether that "
            "labels as well.",
        )


def _suffix(prompts: Sequence[PromptInspection], request: Request) -> Iterator[Advice]:
    if request.n_tokens_suffix < _LONG_SUFFIX * len(prompts):
        return
    lengths = sorted({len(prompt.added.suffix) for prompt in prompts})
    length = f"{lengths[0]} to {lengths[-1]} tokens" if len(lengths) > 1 else counted(lengths[0], "token")
    n_all = request.n_tokens_fragment + request.n_tokens_suffix + request.n_tokens_labels
    yield Advice(
        kind="suffix",
        prompts=_names(prompts),
        text=f"The suffix after the query has {length} in {counted(len(prompts), 'prompt')}: every request feeds "
        f"{request.n_tokens_suffix} for it, of the {n_all} of an empty query. Shorten the text after {{query}}, or "
        "let prompts share it.",
    )


def _collisions(prompt: PromptInspection) -> Iterator[Advice]:
    groups = [(node, labels) for node in prompt.trie.children if len(labels := _labels_below(node)) > 1]
    if not groups:
        return
    n_tokens = sum(_n_to_forks(node) for node, _ in groups)
    words = ", ".join(f"{_named(labels)} (with {node.text!r})" for node, labels in groups)
    now = "" if prompt.scoring == TREE else f"; {prompt.scoring} feeds {prompt.n_tokens_labels}"
    yield Advice(
        kind="collision",
        prompts=(prompt.name,),
        text=f"prompts.{prompt.name}: labels begin with the same token: {words}. first_token scoring is not possible, "
        f"and in tree scoring every request feeds {counted(n_tokens, 'token')} to tell them apart{now}.",
    )


def _missing(prompt: PromptInspection, template: str) -> Iterator[Advice]:
    labels = [label.label for label in prompt.labels]
    missing = [label for label in labels if not _stands_in(label.strip(), template)]
    if missing:
        yield Advice(
            kind="missing",
            prompts=(prompt.name,),
            text=f"prompts.{prompt.name}: the template does not name {len(missing)} of its {len(labels)} labels: "
            f"{_named(missing)}.",
        )


def _stands_in(label: str, template: str) -> bool:
    """Whether a text has a label as a word of its own; `man` does not stand in `woman`."""
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(label)}(?![A-Za-z0-9])", template) is not None


def _labels_below(node: TrieNode) -> list[str]:
    own = [] if node.label is None else [node.label]
    return own + [label for child in node.children for label in _labels_below(child)]


def _n_to_forks(node: TrieNode) -> int:
    """The nodes from this one down to the last forks: what tree scoring feeds."""
    below = sum(_n_to_forks(child) for child in node.children)
    return below + 1 if below or len(node.children) > 1 else 0


def _names(prompts: Sequence[PromptInspection]) -> tuple[str, ...]:
    return tuple(prompt.name for prompt in prompts)


def _named(labels: Sequence[str]) -> str:
    more = len(labels) - _N_NAMED
    return ", ".join(map(repr, labels[:_N_NAMED])) + (f" and {more} more" if more > 0 else "")
