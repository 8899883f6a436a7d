"""The last queries stay in the KV cache: a query that begins like one of them feeds only its other tokens.

There are a fixed number of slots, and a slot keeps one query. It has a sequence for each root, which is a cached prefix
of one or more prompts; the sequence has the cells of the query's tokens after that prefix. Before a decode, the leaves
of a query that begins alike share these cells. After it, the slot that keeps the new query shares the cells of one of
its leaves, which are then trimmed. So all slots are read before any is written: any number of queries may share a
decode.

A model with recurrent layers needs the state after the last cell, too. A slot then keeps cells up to the one place
where it has the state, and only a query that has all these tokens goes on from it. A decode writes this state while it
reads others, so no slot is read and written in one turn: a query that goes on from a slot is kept in another one, and
the slot is then the next to be written.
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


def slots_of(n_queries: int, *, have_states: bool) -> int:
    """The slots that keep n_queries queries: with states there is one more, to be written while the others are read."""
    return n_queries + 1 if n_queries and have_states else n_queries


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
    """the first tokens of its query; (): none"""
    n_tokens: int = 0
    """how many of them it keeps; where there are states, it has the one after them"""
    last_used: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotUpdate:
    """The cells of a decode that a slot keeps."""

    slot: Slot
    fragments: Fragments
    """the first tokens of its query; () if the same query has later decodes: the slot is incomplete until then"""
    n_tokens: int
    """how many of them the slot then keeps"""
    cells: Sequence[tuple[int, int, int, int]]
    """(n_roots of the decode,) leaf sequence, the slot's sequence, first and end position of the cells that the slot's
    sequence then shares with the leaf"""


@dataclass(slots=True, kw_only=True, eq=False)
class Continuation:
    """How a query uses the slots: the one that it continues from, if any, and the one that will keep it."""

    layout: Layout
    fragments: Fragments
    """the query's first tokens"""
    n_to_keep: int
    """how many of them a slot may keep; 0: none"""
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
        n = self.n_to_keep
        last = max(decode for decode, leaf_of in enumerate(leaves) if leaf_of)
        for decode, leaf_of in enumerate(leaves):
            cells = [
                (leaf_of[root.holder], seq, root.n_cached, root.n_cached + n)
                for root, seq in zip(self.layout.roots, self.write_slot.seq, strict=True)
                if root.holder in leaf_of
            ]
            if cells:
                fragments = self.fragments if decode == last else ()
                updates[decode].append(SlotUpdate(slot=self.write_slot, fragments=fragments, n_tokens=n, cells=cells))
        return updates

    @property
    def what(self) -> Fragments:
        """The tokens that a slot may keep."""
        return tuple(each[: self.n_to_keep] for each in self.fragments)


class KeptQueries:
    """The slots of one context, for queries of one layout. This is bookkeeping only; the engine moves the cells."""

    def __init__(self, seqs: Sequence[int], n_roots: int, *, have_states: bool = False) -> None:
        """seqs: the sequences of all slots; each slot gets n_roots of them. have_states: they keep states of recurrent
        layers.
        """
        self.n_seqs = len(seqs)
        self.n_cells = cells_of(self.n_seqs)
        """The most cells that all slots take."""
        self._have_states = have_states
        self._n_roots = n_roots
        self._slots = [Slot(seq=seqs[first : first + n_roots]) for first in range(0, len(seqs), n_roots)]
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
        continuations = [
            self._continuation(layout, after) if after and layout == self._layout and min(map(len, after)) else None
            for layout, after in asked
        ]
        read = [each.read_slot for each in continuations if each] if self._have_states else []
        unread = [slot for slot in self._slots if slot not in read]
        free = sorted(unread, key=lambda slot: (slot.n_tokens > 0, slot.last_used))
        to_keep = [each for each in continuations if each and each.n_to_keep]
        kept: list[Fragments] = []
        for each in to_keep:
            if each.similar_slot in free and each.what not in kept:
                free.remove(each.similar_slot)
                each.write_slot = each.similar_slot
                kept.append(each.what)
        for each in to_keep:
            if free and not each.write_slot and each.what not in kept:
                each.write_slot = free.pop(0)
                kept.append(each.what)
        for each in to_keep:
            if each.write_slot:
                self._use(each.write_slot)
                if each.similar_slot and each.similar_slot in read:
                    each.similar_slot.last_used = 0
        return continuations

    def _use(self, slot: Slot) -> None:
        self._clock += 1
        slot.last_used = self._clock

    def _continuation(self, layout: Layout, after: Sequence[Int32Array]) -> Continuation:
        n_least = min(map(len, after))
        fragments: Fragments = tuple(each[: min(n_least, MOST_TOKENS)].tolist() for each in after)
        shared = [min(map(common_prefix, slot.fragments, fragments), default=0) for slot in self._slots]
        usable = [self._n_usable(slot, min(n, n_least - 1)) for slot, n in zip(self._slots, shared, strict=True)]
        places = range(len(self._slots))
        best = max(places, key=lambda i: (usable[i], shared[i]))
        nearest = max(places, key=lambda i: (shared[i], usable[i]))
        n_kept, read_slot = usable[best], self._slots[best]
        n_shared, similar_slot = shared[nearest], self._slots[nearest]
        # A query replaces a kept one if they share at least half of it. Otherwise it gets the slot used longest ago.
        is_similar = n_shared > 0 and 2 * n_shared >= len(similar_slot.fragments[0]) - min(layout.n_after)
        n_to_keep = len(fragments[0])
        if self._have_states:
            n_query = min(len(each) - n for each, n in zip(after, layout.n_after, strict=True))
            n_to_keep = _state_place(n_query, n_shared if is_similar else None, n_least)
            if n_to_keep <= n_kept:
                if is_similar and nearest == best:
                    similar_slot.fragments = fragments  # as it keeps only what both share
                n_to_keep = 0
        if n_kept:
            self._use(read_slot)
            self.n_found += n_kept * self._n_roots
        return Continuation(
            layout=layout,
            fragments=fragments,
            n_to_keep=n_to_keep,
            n_kept=n_kept,
            roots=[root.kept(seq, n_kept) for root, seq in zip(layout.roots, read_slot.seq, strict=True)]
            if n_kept
            else (),
            read_slot=read_slot if n_kept else None,
            similar_slot=similar_slot if is_similar else None,
        )

    def _n_usable(self, slot: Slot, n_shared: int) -> int:
        """How many tokens a query that shares n_shared tokens with a slot's need not feed."""
        if not self._have_states:
            return n_shared
        return slot.n_tokens if slot.n_tokens <= n_shared else 0

    def forget(self) -> None:
        """Note that the KV cache was emptied."""
        for slot in self._slots:
            slot.fragments = ()
            slot.n_tokens = 0


def _state_place(n_query: int, n_shared: int | None, n_least: int) -> int:
    """After how many tokens of a query its state is kept; 0: nowhere, as it has one token alone.

    n_query: the query's tokens; n_shared: how many of them it shares with the query that it replaces, if there is one;
    n_least: tokens after the root, of which one at least must be left to feed. The next query probably shares what the
    last two share. After another one the last word may be typed further, so that its token changes.
    """
    place = min(n_query, n_query - 1 if n_shared is None else n_shared)
    return min(max(place, 1), n_least - 1, MOST_TOKENS)
