"""The last queries stay in the KV cache: a query that begins like one of them feeds only its other tokens.

There are a fixed number of slots, and a slot keeps one query. It has a sequence for each root, which is a cached prefix
of one or more prompts; the sequence has the cells of the query's tokens after that prefix. Before a decode, the leaves
of a query that begins alike share these cells. After it, the slot that keeps the new query shares the cells of one of
its leaves, which are then trimmed. So all slots are read before any is written: any number of queries may share a
decode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import PlanError
from ..prompts.compiled import common_prefix
from ..statistics import Int32Array
from .tree import KeptRoot, Root

MOST_TOKENS = 64
"""The most tokens after a root that a slot keeps; of a longer query it keeps the first ones."""

Fragments = tuple[list[int], ...]
"""A query's first tokens after the roots, for each distinct text around queries; all have the same length."""


def cells_of(n_seqs: int) -> int:
    """The most cells that n_seqs sequences of slots take."""
    return n_seqs * MOST_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The properties that two prompt sets must share so that one can use the cells of the other's queries."""

    roots: tuple[Root, ...]
    """the cached prefixes that the prompts grow from"""
    fragments: tuple[tuple[str, str], ...]
    """the text around the query after each root"""
    fragment_of: tuple[int, ...]
    """for each root, the index of the distinct fragment that follows it"""
    n_after: tuple[int, ...]
    """for each distinct fragment, about how many tokens follow the query"""


@dataclass(slots=True, kw_only=True, eq=False)
class Slot:
    """The sequences that keep one query."""

    seq: Sequence[int]
    """(n_roots,)"""
    fragments: Fragments = ()
    """the tokens that it keeps; (): none"""
    last_used: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotUpdate:
    """The cells of a decode that a slot keeps."""

    slot: Slot
    fragments: Fragments
    """the tokens that the slot then keeps; () if the same query has later decodes: the slot is incomplete until then"""
    cells: Sequence[tuple[int, int, int, int]]
    """(n_roots of the decode,) leaf sequence, the slot's sequence, first and end position of the cells that the slot's
    sequence then shares with the leaf"""


@dataclass(slots=True, kw_only=True, eq=False)
class Continuation:
    """How a query uses the slots: the one that it continues from, if any, and the one that will keep it."""

    layout: Layout
    fragments: Fragments
    """the query's first tokens, which a slot may keep"""
    n_kept: int
    """tokens after each root that are not fed, because a slot has their cells; at least one token is left to feed"""
    roots: Sequence[KeptRoot]
    """(n_roots,) where the rest of the query grows from, in the order of the layout's roots; empty if n_kept is 0"""
    read_slot: Slot | None
    """the slot that has the cells of the first n_kept tokens; None if n_kept is 0"""
    similar_slot: Slot | None
    """a slot whose query begins alike and should be replaced by this one"""
    write_slot: Slot | None = None
    """the slot that will keep this query; None: it is not kept"""

    def slot_updates(self, leaves: Sequence[Mapping[int, int]]) -> list[list[SlotUpdate]]:
        """For each decode of the query the update of its write_slot: one or none.

        leaves: for each decode one of the query's leaves below each root, by the root's holder. The slot serves other
        queries only after the last of these decodes.
        """
        updates: list[list[SlotUpdate]] = [[] for _ in leaves]
        if self.write_slot is None:
            return updates
        n = len(self.fragments[0])
        last = max(decode for decode, leaf_of in enumerate(leaves) if leaf_of)
        for decode, leaf_of in enumerate(leaves):
            cells = [
                (leaf_of[root.holder], seq, root.n_cached, root.n_cached + n)
                for root, seq in zip(self.layout.roots, self.write_slot.seq, strict=True)
                if root.holder in leaf_of
            ]
            if cells:
                fragments = self.fragments if decode == last else ()
                updates[decode].append(SlotUpdate(slot=self.write_slot, fragments=fragments, cells=cells))
        return updates


class KeptQueries:
    """The slots of one context, for queries of one layout. This is bookkeeping only; the engine moves the cells."""

    def __init__(self, seqs: Sequence[int], n_slots: int) -> None:
        """seqs: the sequences of all slots; each slot gets the same number of them."""
        self.n_seqs = len(seqs)
        self.n_cells = cells_of(self.n_seqs)
        """The most cells that all slots take."""
        self._n_roots = len(seqs) // n_slots
        self._slots = [Slot(seq=seqs[n * self._n_roots : (n + 1) * self._n_roots]) for n in range(n_slots)]
        self._layout: Layout | None = None
        self._clock = 0
        self.n_found = 0
        """tokens of queries that were not fed, because a slot had their cells; counted once for each root"""

    def use_layout(self, layout: Layout) -> None:
        """Keep queries of this layout from now on. Its roots stay in the cache, one for each sequence of a slot.

        Raises PlanError for another number of roots.
        """
        if len(layout.roots) != self._n_roots:
            raise PlanError(f"{len(layout.roots)} prefixes, and slots for queries after {self._n_roots}")
        self._layout = layout

    def find(self, asked: Sequence[tuple[Layout, Sequence[Int32Array] | None]]) -> list[Continuation | None]:
        """For each query of a turn, how it continues a kept one, and which slot will keep it. No two get the same slot.

        asked: for each query its layout, and its tokens after the roots for each distinct text around queries. The
        result is None for a query that is not kept, because it has another layout or no such tokens.
        """
        free = sorted(self._slots, key=lambda slot: slot.last_used)
        continuations = [
            self._continuation(layout, after) if after and layout == self._layout and min(map(len, after)) else None
            for layout, after in asked
        ]
        to_keep = [each for each in continuations if each]
        for each in to_keep:
            if each.similar_slot in free:
                free.remove(each.similar_slot)
                each.write_slot = each.similar_slot
        kept = [each.fragments for each in to_keep if each.write_slot]
        for each in to_keep:
            if free and not each.write_slot and each.fragments not in kept:
                each.write_slot = free.pop(0)
                kept.append(each.fragments)
        for each in to_keep:
            if each.write_slot:
                self._use(each.write_slot)
        return continuations

    def _use(self, slot: Slot) -> None:
        self._clock += 1
        slot.last_used = self._clock

    def _continuation(self, layout: Layout, after: Sequence[Int32Array]) -> Continuation:
        n_least = min(map(len, after))
        fragments: Fragments = tuple(each[: min(n_least, MOST_TOKENS)].tolist() for each in after)
        n_shared, best = 0, self._slots[0]
        for slot in self._slots:
            n = min(map(common_prefix, slot.fragments, fragments), default=0)
            if n > n_shared:
                n_shared, best = n, slot
        n_kept = min(n_shared, n_least - 1)
        if n_kept:
            self._use(best)
            self.n_found += n_kept * self._n_roots
        # A query replaces a kept one if they share at least half of it. Otherwise it gets the slot used longest ago.
        is_similar = n_shared > 0 and 2 * n_shared >= len(best.fragments[0]) - min(layout.n_after)
        return Continuation(
            layout=layout,
            fragments=fragments,
            n_kept=n_kept,
            roots=[root.kept(seq, n_kept) for root, seq in zip(layout.roots, best.seq, strict=True)] if n_kept else (),
            read_slot=best if n_kept else None,
            similar_slot=best if is_similar else None,
        )

    def forget(self) -> None:
        """Note that the KV cache was emptied."""
        for slot in self._slots:
            slot.fragments = ()
