"""A loaded model with the prefixes of all prompts in its cache, and the decode of plans that branch from them.

A prefix lives in a holder sequence, which is never decoded into. Leaf sequences share its cells; the plan's tokens are
put behind them and trimmed away again. Which prefix a leaf sequence shares is remembered, so that requests of the usual
shape move no cells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from ..errors import PlanError, QclsError
from ..native import NativeContext, NativeModel
from ..plan.tree import Int32Array, Plan, TokenTree

Float32Array = npt.NDArray[np.float32]
Meanwhile = Callable[[Float32Array], None]

MAX_SEQ = 256
"""llama.cpp's limit of sequences in one context (LLAMA_MAX_SEQ in src/llama-cparams.h)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """Where a plan branches off: the first n_cached positions of a stored prefix."""

    holder: int
    n_cached: int


_NOTHING = Root(holder=-1, n_cached=0)


class Decoded(NamedTuple):
    """What one decode returned."""

    hidden: Float32Array
    """(n_outputs, n_embd), a view that the next decode overwrites"""
    batch_us: int
    """microseconds of filling the batch"""
    trim_us: int
    """microseconds of trimming the leaf sequences, where the decode waited for it"""


class Engine:
    """One context over a model, its stored prefixes, and its leaf sequences. One thread at a time."""

    def __init__(
        self,
        model: NativeModel,
        context: NativeContext,
        prefixes: Sequence[tuple[int, ...]],
        state: bytes | None = None,
    ) -> None:
        """Decode every distinct prefix once, with equal beginnings fed once, into holder sequences 0, 1, …

        state: what `saved_prefixes` gave of the same prefixes, instead of decoding. Takes over the context.
        Raises PlanError where the prefixes do not fit, DecodeError.
        """
        self.model = model
        self.context = context
        self._holder = {prefix: index for index, prefix in enumerate(dict.fromkeys(prefixes))}
        self.n_holders = len(self._holder)
        self.n_free = context.n_seq_max - self.n_holders
        """Leaf sequences that one decode can use."""
        if self.n_free < 1:
            raise PlanError(f"{self.n_holders} prefixes leave no sequence of {context.n_seq_max} for a query")
        self._shared: list[Root] = []
        self._leaf_seq = np.arange(self.n_holders, context.n_seq_max, dtype=np.int32)
        self._leaf_start = np.zeros(self.n_free, np.int32)  # what each shares of its prefix
        # False while cells change: what an interrupt leaves of them is not trusted
        self._stored = self._clean = False
        self._rows = np.zeros((context.n_outputs_max, context.row_size), np.float32)
        self.n_cached = 0
        """Cells that the stored prefixes occupy; equal beginnings are stored once."""
        self.restore(state)

    def holder(self, prefix: tuple[int, ...]) -> int:
        """The holder sequence of a stored prefix."""
        return self._holder[prefix]

    def leaf_seqs(self, n: int) -> range:
        """The sequences for n leaves."""
        return range(self.n_holders, self.n_holders + n)

    def restore(self, state: bytes | None = None) -> None:
        """Empty the cache and store the prefixes again; a NaN in a freed cell can spoil later requests."""
        self._stored = False
        self.context.clear()
        self._shared = [_NOTHING] * self.n_free
        self._leaf_start[:] = 0
        prefixes = list(self._holder)
        tree = TokenTree()
        root = tree.add_root(0)
        ends = [tree.add_path(root, prefix) for prefix in prefixes]
        self.n_cached = len(tree)
        if state is None:
            self._store(prefixes, tree, ends)
        else:
            self.context.load_state(state)
        self._stored = self._clean = True

    def saved_prefixes(self) -> bytes:
        """The cells of the stored prefixes. Leaf sequences give up what they share."""
        self.context.trim(self._leaf_seq, np.zeros_like(self._leaf_seq))
        self._shared = [_NOTHING] * self.n_free
        self._leaf_start[:] = 0
        return self.context.save_state()

    def _store(self, prefixes: list[tuple[int, ...]], tree: TokenTree, ends: list[int]) -> None:
        """Decode the tree of all prefixes, which end at these nodes."""
        # A prefix that another one begins with ends at an inner node and has no leaf of its own: share its cells later.
        leaf_of = {end: holder for holder, end in enumerate(ends)}
        leaf_nodes = sorted(end for end in leaf_of if tree.is_leaf(end))
        plan = tree.finish([leaf_of[node] for node in leaf_nodes])
        for start in range(0, plan.n_tokens, self.context.n_batch):
            end = min(start + self.context.n_batch, plan.n_tokens)
            self.context.decode(
                plan.token[start:end],
                plan.pos[start:end],
                plan.seq_offset[start : end + 1],
                plan.seq_id,
                plan.output[start:end],
                self._rows[:0],
            )
        for holder, prefix in enumerate(prefixes):
            if ends[holder] >= 0 and not tree.is_leaf(ends[holder]):
                longer = next(
                    i
                    for i, other in enumerate(prefixes)
                    if i != holder and other[: len(prefix)] == prefix and tree.is_leaf(ends[i])
                )
                self.context.share(longer, holder, 0, len(prefix))

    def decode(
        self,
        plan: Plan,
        leaf_roots: Sequence[Root],
        token: Int32Array | None = None,
        *,
        meanwhile: Meanwhile | None = None,
    ) -> Decoded:
        """One llama_decode of a plan whose leaf l is in sequence leaf_seqs(n)[l] and grows from leaf_roots[l].

        token: (n_tokens,) instead of the plan's. meanwhile is not called: where it is given, the sequences are trimmed
        while a GPU computes. Afterwards the leaf sequences are trimmed back to what they share of
        their prefixes; where an interrupt leaves that open, the next decode stores the prefixes anew.
        Raises PlanError, before anything is decoded, and DecodeError.
        """
        if not (self._stored and self._clean):
            self.restore()
        self._clean = False
        for leaf, root in enumerate(leaf_roots):
            if self._shared[leaf] is not root and self._shared[leaf] != root:
                self._share(leaf, root)
        rows = self._rows[: plan.n_outputs]
        n = plan.n_leaves
        try:
            batch_us, trim_us = self.context.decode(
                plan.token if token is None else token,
                plan.pos,
                plan.seq_offset,
                plan.seq_id,
                plan.output,
                rows,
                self._leaf_seq[:n],
                self._leaf_start[:n],
                queued=meanwhile is not None,
            )
        except QclsError:
            self._clean = True
            raise
        self._clean = True
        return Decoded(rows, batch_us, trim_us)

    def _share(self, leaf: int, root: Root) -> None:
        seq = self.n_holders + leaf
        self._shared[leaf] = _NOTHING
        self.context.trim(self._leaf_seq[leaf : leaf + 1], np.zeros(1, np.int32))
        self.context.share(root.holder, seq, 0, root.n_cached)
        self._shared[leaf] = root
        self._leaf_start[leaf] = root.n_cached

    def close(self) -> None:
        """Free the context, then the model; may be called again."""
        self.context.close()
        self.model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
