"""The last queries whose cells stay in the KV cache, so that a query that begins like one of them feeds only the rest.

There are a fixed number of slots. A slot has a sequence for each root, which is a cached prefix of one or more prompts:
the sequence shares the root's cells, and holds those of one query's tokens behind them. The decode of a query puts its
cells into the sequences of a slot as well as into the leaf sequences, so that they stay when the leaves are trimmed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import PlanError
from ..native import NativeContext
from ..plan.templates import Layout
from ..plan.tree import Int32Array, Root
from ..prompts.compiled import common_prefix

MOST_TOKENS = 64
"""The most tokens behind a root whose cells a slot keeps: the first ones of longer queries."""

Fragments = tuple[list[int], ...]
"""A query's tokens behind the roots, for each text that surrounds queries."""


@dataclass(slots=True, kw_only=True, eq=False)
class Slot:
    """The sequences that keep one query."""

    seq: Int32Array
    """(n_roots,)"""
    fragments: Fragments = ()
    """whose cells it holds; (): none"""
    has_roots: bool = False
    """whether its sequences share the cells of the roots"""
    last_used: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """A query that begins with tokens whose cells are kept, maybe none, and the slot that will keep its own."""

    slot: Slot
    source: Slot
    """the slot that has the cells of the first tokens; `slot` itself where its query goes on"""
    n_kept: int
    """tokens behind each root whose cells the source has"""
    fragments: Fragments
    """of which the slot will have the cells"""

    @property
    def n_new(self) -> int:
        """Tokens behind each root that are fed, and whose cells the slot keeps."""
        return (max(map(len, self.fragments)) if self.fragments else MOST_TOKENS) - self.n_kept


class KeptQueries:
    """The slots of one context, for queries of one layout."""

    def __init__(self, context: NativeContext, seqs: Sequence[int], n_slots: int) -> None:
        """seqs: the sequences of all slots, equally many for each."""
        self._context = context
        self._n_roots = len(seqs) // n_slots
        self._slots = [
            Slot(seq=np.array(seqs[n * self._n_roots : (n + 1) * self._n_roots], np.int32)) for n in range(n_slots)
        ]
        self._layout: Layout | None = None
        self._clock = 0
        self.n_found = 0
        """tokens that were not fed because a slot had their cells, counted for each root"""

    def use_layout(self, layout: Layout) -> None:
        """Keep queries of this layout from now on. Its roots stay in the cache, one for each sequence of a slot."""
        if len(layout.roots) != self._n_roots:
            raise PlanError(f"{len(layout.roots)} prefixes, and slots for queries behind {self._n_roots}")
        self._layout = layout

    def find(self, layout: Layout, fragments: Sequence[Int32Array] | None) -> Continuation | None:
        """How a query goes on from a kept one, and which slot will keep it; none for a query that is not kept.

        fragments: the query's tokens behind the roots, for each text that surrounds queries; at least one token of each
        is left to feed. None: a query that goes on from no other, and from which none will.
        """
        if layout != self._layout or (fragments is not None and min(map(len, fragments)) == 0):
            return None
        oldest = min(self._slots, key=lambda slot: slot.last_used)
        if fragments is None:
            return Continuation(slot=oldest, source=oldest, n_kept=0, fragments=())
        tokens: Fragments = tuple(each[:MOST_TOKENS].tolist() for each in fragments)
        n, source = 0, oldest
        for slot in self._slots:
            n_shared = min(map(common_prefix, slot.fragments, tokens), default=0)
            if n_shared > n:
                n, source = n_shared, slot
        # A slot gives up its query for one that shares at least half of it. Otherwise it keeps it, unless it is the
        # slot that was used longest ago itself.
        n_own = max((len(each) - n for each, n in zip(source.fragments, layout.n_behind, strict=False)), default=0)
        is_given_up = n > 0 and 2 * n >= n_own
        n_left = min(map(len, fragments)) - 1
        return Continuation(
            slot=source if is_given_up else oldest, source=source, n_kept=min(n, n_left), fragments=tokens
        )

    def begin(self, found: Continuation, leaf_roots: Sequence[Root]) -> None:
        """Put the cells that are kept into the sequences of the slot, and into leaf sequences 0, 1, ….

        leaf_roots[l]: the root that leaf sequence l shares.
        """
        assert self._layout is not None
        slot, source, context = found.slot, found.source, self._context
        self._clock += 1
        slot.last_used = source.last_used = self._clock
        slot.fragments = ()
        ends = np.array([root.n_cached for root in self._layout.roots], np.int32)
        if not slot.has_roots:
            for root, seq in zip(self._layout.roots, slot.seq.tolist(), strict=True):
                context.share(root.holder, seq, 0, root.n_cached)
            slot.has_roots = True
        elif source is slot:
            context.trim(slot.seq, ends + found.n_kept)
        else:
            context.trim(slot.seq, ends)
        if found.n_kept == 0:
            return
        if source is not slot:
            for start, src, dst in zip(ends.tolist(), source.seq.tolist(), slot.seq.tolist(), strict=True):
                context.share(src, dst, start, start + found.n_kept)
        seq_of = dict(zip(self._layout.roots, source.seq.tolist(), strict=True))
        for leaf, root in enumerate(leaf_roots):
            context.share(seq_of[root], leaf, root.n_cached, root.n_cached + found.n_kept)

    def end(self, found: Continuation) -> None:
        """Note that the slot has the cells of its query."""
        found.slot.fragments = found.fragments
        self.n_found += found.n_kept * self._n_roots

    def forget(self) -> None:
        """Note that the KV cache was emptied."""
        for slot in self._slots:
            slot.fragments, slot.has_roots = (), False
