"""A set of compiled prompts that one request answers together: immutable, and identified by its digest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from types import SimpleNamespace
from typing import Protocol

import numpy as np

from ..config.fitted import Heads
from ..config.prompt import PromptConfig, turned
from ..config.scoring import EXACT_SCORINGS
from ..config.words import digest_of
from ..errors import ConfigError
from ..statistics import Int32Array
from .compiled import Prompt, Tokenizer, compile_prompt
from .trie import Pointer


@dataclass(frozen=True, kw_only=True)
class PromptSet:
    """Compiled prompts with their settings. Sets with equal digests give the same answers on the same model."""

    prompts: tuple[Prompt, ...]
    orders: tuple[Prompt, ...] = ()
    """the same prompts with their labels listed in other orders, by prompt"""
    exact: bool
    """whether every answer carries exact scores, which need the LM head"""

    @cached_property
    def fed(self) -> tuple[Prompt, ...]:
        """The prompts, then those in other orders: all that a request feeds."""
        return self.prompts + self.orders

    @property
    def settings(self) -> tuple[PromptConfig, ...]:
        """The settings of the prompts."""
        return tuple(prompt.settings for prompt in self.prompts)

    def depths(self, n_layer: int) -> set[int]:
        """The layers after which hidden states are read; n_layer: the final-norm hidden state."""
        depths = {prompt.head.depth for prompt in self.prompts if prompt.head}
        return depths | {n_layer} if self.exact or self.reads_labels else depths

    @property
    def reads_labels(self) -> bool:
        """Whether an answer depends on labels' texts: there is a prompt without a head, or whose head reads them."""
        return any(not prompt.head or prompt.head.reads_labels for prompt in self.prompts)

    @cached_property
    def fragments(self) -> Mapping[tuple[str, str], int]:
        """The distinct texts around the query, in the order of the prompts, with their numbers of tokens for an
        empty query."""
        return {prompt.fragment: prompt.n_empty for prompt in self.fed}

    @property
    def prefixes(self) -> tuple[tuple[int, ...], ...]:
        """The tokens of the prompts' cached prefixes."""
        return tuple(prompt.prefix for prompt in self.fed)

    @cached_property
    def label_tokens(self) -> Int32Array:
        """(n,) the tokens of all edges of the label tries, ascending."""
        edge_tokens = {edge.token for prompt in self.fed for edge in prompt.trie.edges}
        tokens = np.array(sorted(edge_tokens), np.int32)  # np.unique would import numpy.ma, a tenth of what numpy takes
        tokens.setflags(write=False)
        return tokens

    @cached_property
    def digest(self) -> str:
        """A sha256 of everything that the answers depend on except the model: tokens, tries, settings."""
        parts = [
            [
                [prompt.opening, prompt.before, prompt.after, prompt.stable, prompt.closing, prompt.has_state],
                [prompt.labels, prompt.label_tokens, prompt.trie.scoring, prompt.trie.fed, prompt.trie.label_edges],
                prompt.trie.edges,
                [repr(prompt.settings), prompt.head and prompt.head.digest],
            ]
            for prompt in self.fed
        ]
        return digest_of([self.exact, parts])

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PromptSet) and self.digest == other.digest


def read_depths(sets: Sequence[PromptSet], n_layer: int) -> tuple[tuple[int, ...], int]:
    """(depths that are read, ascending, beside the last one; the last layer that has to be computed, 0 for all)."""
    depths = sorted(set[int]().union(*(prompts.depths(n_layer) for prompts in sets)))
    if not depths or depths[-1] == n_layer:
        return tuple(depths[:-1]), 0
    return tuple(depths[:-1]), depths[-1]


class PromptModel(Tokenizer, Protocol):
    """The part of a model that the compilation of prompts needs."""

    first_token: int
    """The token that the model wants at the beginning of every text, -1 for none."""

    has_states: bool
    """Whether recurrent layers keep states of sequences."""

    label_end: int
    """The default token after a label with which another label begins; -1: none."""


def compile_prompts(
    configs: Sequence[PromptConfig],
    model: PromptModel,
    *,
    audit: bool = False,
    heads: Heads | None = None,
    pointer: Pointer | None = None,
    codes: bool = False,
    tokenizer: Tokenizer | None = None,
) -> PromptSet:
    """Tokenise the templates and labels of some prompts.

    audit: let every answer carry exact scores; heads: what answers some of them; pointer: what answers all of them;
    codes: as for `compile_prompt`, and the texts begin as they are written, without the model's first token; tokenizer:
    None: the model's own.
    Raises ConfigError, which names the prompt.
    """
    # prompts often share labels and the text around the query
    source, prompts = tokenizer or model, []
    cached = SimpleNamespace(tokenize=cache(source.tokenize), piece=cache(source.piece))
    by_name = heads.prompts if heads else {}
    orders = []
    for config in configs:
        head = pointer or by_name.get(config.name)
        compiled = partial(
            compile_prompt,
            cached,
            config,
            bos=-1 if codes else model.first_token,
            end=_end_token(config, model),
            exact=audit,
            head=head,
            has_state=model.has_states,
            codes=codes,
        )
        prompts.append(compiled((head and head.text) or config.expanded_template))
        for order in range(1, 1 if head else config.label_orders):
            orders.append(compiled(turned(config, configs, order, config.label_orders).expanded_template))
    exact = audit or any(
        prompt.settings.scoring in EXACT_SCORINGS and (prompt.head is None or prompt.head.reads_labels)
        for prompt in prompts
    )
    return PromptSet(prompts=tuple(prompts), orders=tuple(orders), exact=exact)


def _end_token(config: PromptConfig, model: PromptModel) -> int:
    if config.label_end is None:
        return model.label_end
    tokens = model.tokenize(config.label_end, parse_special=True)
    if len(tokens) != 1:
        what = f"prompts.{config.name}.label_end: {config.label_end!r} is {len(tokens)} tokens of this model"
        raise ConfigError(f"{what}: give the text of one, such as <|im_end|>")
    return int(tokens[0])
