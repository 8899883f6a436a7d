"""A set of compiled prompts that one request answers together: immutable, and identified by its digest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import islice
from types import MappingProxyType
from typing import Protocol

import numpy as np

from ..config.heads_file import Head, Heads
from ..config.prompt import PromptConfig
from ..config.scoring import EXACT_SCORINGS
from ..config.words import digest_of
from ..errors import ConfigError
from ..statistics import Int32Array
from .compiled import Prompt, Tokenizer, compile_prompt
from .pointer import Pointer


@dataclass(frozen=True, kw_only=True)
class PromptSet:
    """Compiled prompts with their settings. Sets with equal digests give the same answers on the same model."""

    prompts: tuple[Prompt, ...]
    settings: tuple[PromptConfig, ...]
    """of each prompt: its scoring, calibration and abstention"""
    fragments: Mapping[tuple[str, str], int]
    """the distinct texts around the query, in the order of the prompts, each with its number of tokens for an empty
    query"""
    exact: bool
    """whether every answer carries exact scores, which need the LM head"""
    heads: tuple[Head | Pointer | None, ...]
    """of each prompt: what answers instead of its labels' texts"""

    def depths(self, n_layer: int) -> set[int]:
        """The layers after which hidden states are read; n_layer: the final-norm hidden state."""
        found = {head.depth for head in self.heads if head}
        return found | {n_layer} if self.exact or self.reads_labels else found

    @property
    def reads_labels(self) -> bool:
        """Whether an answer depends on labels' texts: there is a prompt without a head, or whose head reads them."""
        return any(not head or head.reads_labels for head in self.heads)

    @cached_property
    def listings(self) -> tuple[Prompt, ...]:
        """All that is fed: each prompt, followed by the same with its labels in other orders."""
        return _listings(self.prompts)

    @property
    def n_empty(self) -> tuple[int, ...]:
        """The fragment's number of tokens for an empty query, listing by listing."""
        return tuple(self.fragments[prompt.fragment] for prompt in self.listings)

    @property
    def prefixes(self) -> tuple[tuple[int, ...], ...]:
        """The tokens of each listing's cached prefix."""
        return tuple(prompt.prefix for prompt in self.listings)

    @property
    def has_one_text_a_prefix(self) -> bool:
        """Whether prompts with the same cached prefix have the same text around the query, too."""
        both = {(prompt.prefix, prompt.fragment) for prompt in self.listings}
        return len(both) == len(set(self.prefixes))

    @cached_property
    def label_tokens(self) -> Int32Array:
        """(n,) the tokens of all edges of the label tries, ascending."""
        found = {edge.token for prompt in self.listings for edge in prompt.trie.edges}
        tokens = np.array(sorted(found), np.int32)  # np.unique would import numpy.ma, a tenth of what numpy takes
        tokens.setflags(write=False)
        return tokens

    @cached_property
    def digest(self) -> str:
        """A sha256 of everything that the answers depend on except the model: tokens, tries, settings."""
        parts = [
            [
                [prompt.opening, prompt.before, prompt.after, prompt.stable, prompt.closing, prompt.has_state],
                [prompt.labels, prompt.label_tokens, prompt.trie.scoring, prompt.trie.fed, prompt.trie.label_edges],
                [[edge.node, edge.token] for edge in prompt.trie.edges],
                [repr(setting), head and head.digest],
            ]
            for prompt, setting, head in zip(self.prompts, self.settings, self.heads, strict=True)
        ]
        return digest_of([self.exact, parts])

    def subset(self, names: Sequence[str]) -> PromptSet:
        """The set of the prompts with these names, in this set's order."""
        chosen = [index for index, prompt in enumerate(self.prompts) if prompt.name in names]
        prompts = tuple(self.prompts[index] for index in chosen)
        return PromptSet(
            prompts=prompts,
            settings=tuple(self.settings[index] for index in chosen),
            fragments=MappingProxyType({each.fragment: self.fragments[each.fragment] for each in _listings(prompts)}),
            exact=self.exact,
            heads=tuple(self.heads[index] for index in chosen),
        )

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PromptSet) and self.digest == other.digest


def read_depths(sets: Sequence[PromptSet], n_layer: int) -> tuple[tuple[int, ...], int]:
    """(depths that are read, ascending, beside the last one; the last layer that has to be computed, 0 for all)."""
    found = sorted(set[int]().union(*(each.depths(n_layer) for each in sets)))
    if not found or found[-1] == n_layer:
        return tuple(found[:-1]), 0
    return tuple(found[:-1]), found[-1]


def _listings(prompts: Sequence[Prompt]) -> tuple[Prompt, ...]:
    return tuple(listing for prompt in prompts for listing in (prompt, *prompt.others))


class Vocabulary(Tokenizer, Protocol):
    """The part of a model that the compilation of prompts needs."""

    first_token: int
    """The token that the model wants at the beginning of every text, -1 for none."""

    has_states: bool
    """Whether recurrent layers keep a state of each sequence."""

    @property
    def label_end(self) -> int:
        """The default token after a label with which another label begins; -1: none."""


class _CachingTokenizer:
    """A tokenizer that remembers results, because prompts often share labels and the text around the query."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenize = cache(tokenizer.tokenize)
        self.piece = cache(tokenizer.piece)


def compile_prompts(
    configs: Sequence[PromptConfig],
    model: Vocabulary,
    *,
    audit: bool = False,
    heads: Heads | None = None,
    pointer: Pointer | None = None,
    codes: bool = False,
) -> PromptSet:
    """Tokenise the templates and labels of some prompts.

    audit: let every answer carry exact scores; heads: what answers some of them; pointer: what answers all of them;
    codes: as for `compile_prompt`.
    Raises ConfigError, which names the prompt.
    """
    tokenizer = _CachingTokenizer(model)
    by_name = heads.prompts if heads else {}
    by_prompt = [pointer or by_name.get(config.name) for config in configs]
    listings = tuple(
        compile_prompt(
            tokenizer,
            name=config.name,
            template=(head and head.text) or template,
            label_prefix=config.label_prefix,
            labels=config.labels,
            scoring=config.scoring,
            bos=model.first_token,
            end=_end_token(config, model),
            exact=audit,
            learnt=head,
            has_state=model.has_states,
            codes=codes,
        )
        for config, head in zip(configs, by_prompt, strict=True)
        for template in config.expanded_templates
    )
    n_empty = {
        prompt.fragment: len(tokenizer.tokenize(prompt.before + prompt.after, parse_special=False))
        for prompt in listings
    }
    left = iter(listings)
    return PromptSet(
        prompts=tuple(replace(next(left), others=tuple(islice(left, config.label_orders - 1))) for config in configs),
        settings=tuple(
            replace(config, prior="none", temperature=None) if head else config
            for config, head in zip(configs, by_prompt, strict=True)
        ),
        fragments=MappingProxyType(n_empty),
        exact=audit
        or any(
            config.scoring in EXACT_SCORINGS and (head is None or head.reads_labels)
            for config, head in zip(configs, by_prompt, strict=True)
        ),
        heads=tuple(by_prompt),
    )


def _end_token(config: PromptConfig, model: Vocabulary) -> int:
    if config.label_end is None:
        return model.label_end
    tokens = model.tokenize(config.label_end, parse_special=True)
    if len(tokens) != 1:
        raise ConfigError(
            f"prompts.{config.name}.label_end: {config.label_end!r} is {len(tokens)} tokens of this model: "
            "give the text of one, such as <|im_end|>"
        )
    (token,) = tokens.tolist()
    return int(token)
