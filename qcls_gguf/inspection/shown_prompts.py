"""What the model reads of a prompt with a query: text and tokens, which of them are cached, and the labels tried."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from ..classifier import Classifier
from ..config.likely_mistake import LikelyMistake
from ..config.template import SLOT
from ..config.words import hint
from ..errors import ConfigError
from ..prompts.compiled import Prompt, Tokenizer
from ..report.record import Record
from .inspect import ended_labels, fragment_tokens, label_trie, piece_text
from .records import TrieNode


class ShownToken(Record):
    """A token of a prompt."""

    token: int
    """its id"""
    text: str
    """bytes that are no whole character are shown as escapes"""
    is_control: bool
    """whether it is a control token, or another mark of the vocabulary that only a template may hold"""
    is_cached: bool
    """whether it was computed at start-up; the others are fed with the query"""


class ShownPart(Record):
    """Text of consecutive tokens of one kind."""

    text: str
    """bytes that are no whole character are shown as escapes"""
    is_control: bool
    """whether they are control tokens"""
    is_cached: bool
    """whether they were computed at start-up"""


class ShownPrompt(Record):
    """A prompt with a query, as the model reads it."""

    name: str
    """the prompt's name"""
    text: str
    """the whole text, by the chat template where it was given as system and user"""
    parts: tuple[ShownPart, ...]
    """the same text by kinds of tokens, with what the tokenizer adds, such as a beginning token"""
    fast_path: bool
    """false where the query changes tokens of the cached prefix, which are fed anew"""
    n_cached: int
    """tokens that are cached"""
    n_fed: int
    """tokens that the query's request feeds, without those of labels"""
    tokens: tuple[ShownToken, ...]
    """all of them, in order"""
    labels: TrieNode
    """the label trie: what is tried behind the last token"""


class ShownPrompts(Record):
    """Prompts with a query, as the model reads them."""

    query: str
    """the query in its slot"""
    prompts: tuple[ShownPrompt, ...]
    """those that were asked for"""
    warnings: tuple[LikelyMistake, ...]
    """what is likely a mistake in all prompts of the configuration"""


def show_prompts(classifier: Classifier, names: Sequence[str], query: str) -> ShownPrompts:
    """The prompts of some names, all if none is given. Raises ConfigError for another name, PlanError for the query."""
    known = [prompt.name for prompt in classifier.prompts]
    for name in names:
        if name not in known:
            raise ConfigError(f"`prompt` {name}: is no prompt of the configuration, {hint(name, known)}")
    classifier.check(query)
    tokenizer = classifier.engine.model
    pairs = zip(classifier.prompts, classifier.config.prompts, strict=True)
    return ShownPrompts(
        query=query,
        prompts=tuple(
            show_prompt(prompt, config.expanded_template, tokenizer, query)
            for prompt, config in pairs
            if not names or prompt.name in names
        ),
        warnings=classifier.warnings,
    )


def show_prompt(prompt: Prompt, template: str, tokenizer: Tokenizer, query: str) -> ShownPrompt:
    """A compiled prompt with a query; template: its text, with the query's slot."""
    fragment = fragment_tokens(prompt, tokenizer, query)
    n_cached, fed = prompt.new_tokens(fragment)
    tokens = [*prompt.prefix[:n_cached], *fed]
    pieces = [tokenizer.piece(token) for token in tokens]
    kinds = [(is_control, index < n_cached) for index, (_, is_control) in enumerate(pieces)]
    runs = groupby(zip(kinds, pieces, strict=True), key=lambda pair: pair[0])
    return ShownPrompt(
        name=prompt.name,
        text=template.replace(SLOT, query),
        parts=tuple(
            ShownPart(
                text=b"".join(piece for _, (piece, _) in run).decode(errors="backslashreplace"),
                is_control=is_control,
                is_cached=is_cached,
            )
            for (is_control, is_cached), run in runs
        ),
        fast_path=n_cached == len(prompt.prefix),
        n_cached=n_cached,
        n_fed=len(fed),
        tokens=tuple(
            ShownToken(
                token=token,
                text=piece_text(tokenizer, token),
                is_control=is_control,
                is_cached=is_cached,
            )
            for token, (is_control, is_cached) in zip(tokens, kinds, strict=True)
        ),
        labels=label_trie(prompt, ended_labels(prompt), tokenizer),
    )
