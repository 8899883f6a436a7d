"""Decoding prefixes into the KV cache, except the beginnings that are cached already."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..native import NativeContext
from ..plan.tree import Plan, TokenTree
from .prefix_cache import Prefix, PrefixCache, Tokens


def store_prefixes(
    context: NativeContext, cache: PrefixCache, prefixes: Sequence[Prefix], *, have_states: bool
) -> None:
    """Decode reserved prefixes into the sequences that hold them, and put them into the cache.

    have_states: the model keeps a state of each sequence, so that a prefix can only continue another whole prefix.
    Raises DecodeError.
    """
    if have_states:
        for prefix in sorted(prefixes, key=lambda prefix: len(prefix.tokens)):
            _store_alone(context, cache, prefix)
    else:
        _store_together(context, cache, prefixes)


def _store_alone(context: NativeContext, cache: PrefixCache, prefix: Prefix) -> None:
    """Decode what follows the longest cached prefix that this one begins with."""
    match, n = cache.match(prefix.tokens)
    if match is not None and n > 0:
        context.share(match.holder, prefix.holder, 0, n)
    tree = TokenTree()
    tree.add_path(tree.add_root(n), prefix.tokens[n:])
    _decode(context, tree.finish([prefix.holder]))
    cache.put(prefix)


def _store_together(context: NativeContext, cache: PrefixCache, prefixes: Sequence[Prefix]) -> None:
    """Decode the tokens of some prefixes that are not cached, as one tree: equal beginnings are fed once."""
    matches = [cache.match(prefix.tokens) for prefix in prefixes]
    tree = TokenTree()
    roots: dict[Tokens, int] = {}
    ends = []
    for prefix, (match, n) in zip(prefixes, matches, strict=True):
        if prefix.tokens[:n] not in roots:
            roots[prefix.tokens[:n]] = tree.add_root(n)
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


def _decode(context: NativeContext, plan: Plan) -> None:
    no_rows = np.zeros((0, context.row_size), np.float32)
    for start in range(0, plan.n_tokens, context.n_batch):
        context.decode(*plan.part(start, min(start + context.n_batch, plan.n_tokens)), no_rows)
