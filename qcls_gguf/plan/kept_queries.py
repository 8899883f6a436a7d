"""The last queries whose cells stay in the KV cache, so that a query that begins like one of them feeds only the rest.

There are a fixed number of slots. A slot has a sequence for each root, which is a cached prefix of one or more prompts:
the sequence has the cells of one query's tokens after that prefix. The leaves of a query that begins alike share these
cells before they are decoded, and the slot that keeps this query gets its cells from a leaf before the leaves are
trimmed. So until a decode is done slots are only read, and afterwards only written: any number of queries may share the
decode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import PlanError
from ..prompts.compiled import common_prefix
from .tree import Int32Array, KeptRoot, Root

MOST_TOKENS = 64
"""The most tokens after a root whose cells a slot keeps; of a longer query it keeps the first ones."""

Fragments = tuple[list[int], ...]
"""A query's first tokens after the roots: for each distinct text around queries equally many."""


def cells_of(n_seqs: int) -> int:
    """The most cells of so many sequences of slots."""
    return n_seqs * MOST_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What two prompt sets must have in common for the cells of one's query to serve the other's."""

    roots: tuple[Root, ...]
    """the cached prefixes that the prompts grow from"""
    fragments: tuple[tuple[str, str], ...]
    """the text around the query after each root"""
    fragment_of: tuple[int, ...]
    """for each root, which of the distinct fragments follows it"""
    n_after: tuple[int, ...]
    """for each distinct fragment, about how many tokens follow the query"""


@dataclass(slots=True, kw_only=True, eq=False)
class Slot:
    """The sequences that keep one query."""

    seq: Sequence[int]
    """(n_roots,)"""
    fragments: Fragments = ()
    """the tokens whose cells it has; (): none"""
    last_used: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotUpdate:
    """The cells of a decode that a slot takes over."""

    slot: Slot
    fragments: Fragments
    """the tokens of these cells; () if other decodes of the same query follow, so that the slot is not complete yet"""
    cells: Sequence[tuple[int, int, int, int]]
    """(n_roots of the decode,) leaf sequence, the slot's sequence, and the first and the end position of the cells that
    both then share"""


@dataclass(slots=True, kw_only=True, eq=False)
class Continuation:
    """A query that begins with tokens whose cells are kept, maybe none."""

    layout: Layout
    fragments: Fragments
    """the tokens whose cells a slot may keep"""
    n_kept: int
    """tokens after each root whose cells a slot has; at least one token of the query is left to feed"""
    roots: Sequence[KeptRoot]
    """(n_roots,) where the rest of the query goes on, in the order of the layout's roots; empty if n_kept is 0"""
    source: Slot | None
    """the slot whose cells it uses"""
    own: Slot | None
    """a slot with a query that begins alike, which this query replaces"""
    slot: Slot | None = None
    """the slot that will keep this query"""

    def kept(self, leaves: Sequence[Mapping[int, int]]) -> list[list[SlotUpdate]]:
        """For each decode of the query the cells that the query's slot takes over: one Kept or none.

        leaves: for each decode, by the holder of each root that it has, one of the query's leaves below that root. The
        slot serves other queries only after the last of these decodes.
        """
        left: list[list[SlotUpdate]] = [[] for _ in leaves]
        if self.slot is None:
            return left
        n = len(self.fragments[0])
        last = max(decode for decode, leaf_of in enumerate(leaves) if leaf_of)
        for decode, leaf_of in enumerate(leaves):
            cells = [
                (leaf_of[root.holder], seq, root.n_cached, root.n_cached + n)
                for root, seq in zip(self.layout.roots, self.slot.seq, strict=True)
                if root.holder in leaf_of
            ]
            if cells:
                fragments = self.fragments if decode == last else ()
                left[decode].append(SlotUpdate(slot=self.slot, fragments=fragments, cells=cells))
        return left


class KeptQueries:
    """The slots of one context, for queries of one layout. It is bookkeeping only; the engine moves the cells."""

    def __init__(self, seqs: Sequence[int], n_slots: int) -> None:
        """seqs: the sequences of all slots, equally many for each."""
        self.n_seqs = len(seqs)
        self.n_cells = cells_of(self.n_seqs)
        """The most cells of all slots."""
        self._n_roots = len(seqs) // n_slots
        self._slots = [Slot(seq=seqs[n * self._n_roots : (n + 1) * self._n_roots]) for n in range(n_slots)]
        self._layout: Layout | None = None
        self._clock = 0
        self.n_found = 0
        """tokens of queries that were not fed because a slot had their cells, counted for each root"""

    def use_layout(self, layout: Layout) -> None:
        """Keep queries of this layout from now on. Its roots stay in the cache, one for each sequence of a slot."""
        if len(layout.roots) != self._n_roots:
            raise PlanError(f"{len(layout.roots)} prefixes, and slots for queries after {self._n_roots}")
        self._layout = layout

    def find(self, asked: Sequence[tuple[Layout, Sequence[Int32Array] | None]]) -> list[Continuation | None]:
        """For each query of a turn how it goes on from a kept one, and which slot will keep it, each a different one.

        asked: for each query its layout, and its tokens after the roots for each distinct text around queries. None for
        a query that is not kept, because it has another layout or no such tokens.
        """
        free = sorted(self._slots, key=lambda slot: slot.last_used)
        found = [
            self._continuation(layout, after) if after and layout == self._layout and min(map(len, after)) else None
            for layout, after in asked
        ]
        kept = [each for each in found if each]
        for each in kept:
            if each.own in free:
                free.remove(each.own)
                each.slot = each.own
        taken = [each.fragments for each in kept if each.slot]
        for each in kept:
            if free and not each.slot and each.fragments not in taken:
                each.slot = free.pop(0)
                taken.append(each.fragments)
        for each in kept:
            if each.slot:
                self._use(each.slot)
        return found

    def _use(self, slot: Slot) -> None:
        self._clock += 1
        slot.last_used = self._clock

    def _continuation(self, layout: Layout, after: Sequence[Int32Array]) -> Continuation:
        n_least = min(map(len, after))
        fragments: Fragments = tuple(each[: min(n_least, MOST_TOKENS)].tolist() for each in after)
        n, source = 0, self._slots[0]
        for slot in self._slots:
            n_shared = min(map(common_prefix, slot.fragments, fragments), default=0)
            if n_shared > n:
                n, source = n_shared, slot
        n_kept = min(n, n_least - 1)
        if n_kept == 0:
            return Continuation(
                layout=layout, fragments=fragments, n_kept=0, roots=(), source=None, own=source if n else None
            )
        self._use(source)
        self.n_found += n_kept * self._n_roots
        # A query replaces one of which it shares at least half. Otherwise it takes the slot that was used longest ago.
        is_replaced = 2 * n >= len(source.fragments[0]) - min(layout.n_after)
        return Continuation(
            layout=layout,
            fragments=fragments,
            n_kept=n_kept,
            roots=[root.kept(seq, n_kept) for root, seq in zip(layout.roots, source.seq, strict=True)],
            source=source,
            own=source if is_replaced else None,
        )

    def forget(self) -> None:
        """Note that the KV cache was emptied."""
        for slot in self._slots:
            slot.fragments = ()
