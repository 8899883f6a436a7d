"""Which token prefixes are in the KV cache, and decoding those that are not.

A cached prefix has a sequence that holds its cells. Prefixes that begin alike share the cells of that beginning. In
the order of their tokens, the prefix that shares most with another one is beside it. A prefix that somebody uses is
pinned; the others are evicted when space is needed, the least recently used first. The caches are bookkeeping only:
`store_prefixes` and the engine move the cells.
"""

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..native import NativeContext
from ..plan.decodes import DecodeInput, Root, TokenTree
from ..prompts.compiled import common_prefix

Tokens = tuple[int, ...]


@dataclass(slots=True, kw_only=True, eq=False)
class Prefix:
    """A cached prefix."""

    tokens: Tokens
    holder: int
    """the sequence that holds its cells"""
    group: int
    """prefixes that were decoded together have the same number; later groups have higher numbers"""
    n_users: int = 0


class PrefixCache:
    """The prefixes of one context."""

    def __init__(self, holders: Sequence[int], *, have_states: bool = False) -> None:
        """holders: the sequences that may hold a prefix; have_states: the model keeps a state of every sequence, after
        its last token. A prefix can then share cells only with a whole cached prefix that it begins with, because
        no other place has a state; shared cells are counted for both.
        """
        self.have_states = have_states
        self._free = sorted(holders)  # a heap: the lowest goes first, so that equal starts give equal sequences
        self._by_tokens: dict[Tokens, Prefix] = {}  # the least recently used one first
        self._ordered: list[Tokens] = []
        self.n_cells = 0
        """cells that all prefixes occupy"""

    def __len__(self) -> int:
        return len(self._by_tokens)

    @property
    def prefixes(self) -> list[Prefix]:
        """All prefixes, the least recently used one first."""
        return list(self._by_tokens.values())

    @property
    def n_free_holders(self) -> int:
        """How many more prefixes there are sequences for."""
        return len(self._free)

    def get(self, tokens: Tokens) -> Prefix | None:
        """The prefix of exactly these tokens, if it is cached."""
        return self._by_tokens.get(tokens)

    def match(self, tokens: Tokens) -> tuple[Prefix | None, int]:
        """(a cached prefix that shares the longest beginning with these tokens, the length of that beginning).

        (None, 0) if no prefix shares any.
        """
        if self.have_states:
            beside = [known for known in self._ordered if known == tokens[: len(known)]]
        else:
            at = bisect_left(self._ordered, tokens)
            beside = self._ordered[max(0, at - 1) : at + 1]
        n, nearest = max(((common_prefix(known, tokens), known) for known in beside), default=(0, ()))
        return (self._by_tokens[nearest], n) if n else (None, 0)

    def reserve(self, tokens: Tokens, group: int) -> Prefix:
        """A prefix with a sequence of its own, not in the cache yet; the caller has checked that one is free."""
        return Prefix(tokens=tokens, holder=heapq.heappop(self._free), group=group)

    def give_back(self, prefix: Prefix) -> None:
        """Free the sequence of a prefix that is not in the cache."""
        heapq.heappush(self._free, prefix.holder)

    def put(self, prefix: Prefix) -> None:
        """Record that a prefix is cached; no other one has its tokens."""
        self.n_cells += self._n_own(prefix.tokens)
        self._by_tokens[prefix.tokens] = prefix
        self._ordered.insert(bisect_left(self._ordered, prefix.tokens), prefix.tokens)

    def evict(self, prefix: Prefix) -> None:
        """Record that a prefix is not cached any more: its sequence, and cells that no other one shares, are free."""
        del self._by_tokens[prefix.tokens]
        del self._ordered[bisect_left(self._ordered, prefix.tokens)]
        self.n_cells -= self._n_own(prefix.tokens)
        self.give_back(prefix)

    def _n_own(self, tokens: Tokens, other: Tokens = ()) -> int:
        """The cells of a prefix that it shares neither with a cached one nor with `other`."""
        if self.have_states:
            return len(tokens)
        return len(tokens) - max(self.match(tokens)[1], common_prefix(tokens, other))

    def use(self, prefix: Prefix) -> None:
        """Record that a prefix is used now."""
        self._by_tokens[prefix.tokens] = self._by_tokens.pop(prefix.tokens)

    def n_missing(self, wanted: Sequence[Tokens]) -> tuple[int, int]:
        """(sequences, cells) that those wanted prefixes need which are not cached yet."""
        missing = sorted({tokens for tokens in wanted if tokens not in self._by_tokens})
        n_cells, before = 0, Tokens()
        for tokens in missing:  # sorted, so that those which share the longest beginning are neighbours
            n_cells += self._n_own(tokens, before)
            before = tokens
        return len(missing), n_cells

    def least_recently_used(self) -> Prefix | None:
        """The least recently used prefix that is not in use; None if all are."""
        return next((prefix for prefix in self._by_tokens.values() if prefix.n_users == 0), None)


def store_prefixes(context: NativeContext, cache: PrefixCache, prefixes: Sequence[Prefix]) -> None:
    """Decode reserved prefixes into the sequences that hold them, and put them into the cache. Raises DecodeError."""
    if cache.have_states:  # a prefix can then only continue another whole one
        for prefix in sorted(prefixes, key=lambda prefix: len(prefix.tokens)):
            _store_together(context, cache, [prefix])
    else:
        _store_together(context, cache, prefixes)


def _store_together(context: NativeContext, cache: PrefixCache, prefixes: Sequence[Prefix]) -> None:
    """Decode the tokens of some prefixes that are not cached, as one tree: equal beginnings are fed once."""
    matches = [cache.match(prefix.tokens) for prefix in prefixes]
    tree = TokenTree()
    roots: dict[Tokens, int] = {}
    ends = []
    for prefix, (match, n) in zip(prefixes, matches, strict=True):
        if prefix.tokens[:n] not in roots:
            roots[prefix.tokens[:n]] = tree.add_root(Root(prefix.holder, n))
        ends.append(tree.add_path(roots[prefix.tokens[:n]], prefix.tokens[n:]))
        if match is not None:
            context.share(match.holder, prefix.holder, 0, n)
    # A prefix that is the beginning of another one has no leaf: it shares the longer one's cells, further below.
    leaves = {end: prefix for end, prefix in zip(ends, prefixes, strict=True) if tree.is_leaf(end)}
    _decode(context, tree.finish([leaves[node].holder for node in sorted(leaves)]))
    for end, prefix in zip(ends, prefixes, strict=True):
        if end >= 0 and end not in leaves:
            n = len(prefix.tokens)
            longer = next(other for other in leaves.values() if other.tokens[:n] == prefix.tokens)
            context.share(longer.holder, prefix.holder, 0, n)
        cache.put(prefix)


def _decode(context: NativeContext, wanted: DecodeInput) -> None:
    """Decode it in pieces of at most a batch. Raises DecodeError."""
    token, pos, seq_offset, seq_id, output, *_ = wanted
    no_rows = np.zeros((0, context.row_size), np.float32)
    for start in range(0, wanted.n_tokens, context.n_batch):
        end = start + context.n_batch
        part = token[start:end], pos[start:end], seq_offset[start : end + 1], seq_id, output[start:end]
        context.decode(*part, no_rows)
