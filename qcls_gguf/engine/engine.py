"""A llama.cpp context with a prefix cache, and the decode of plans that branch from cached prefixes.

The context's sequences are of two kinds. Leaf sequences 0, 1, … are what plans decode in: they share the cells of a
prefix, the plan's tokens are appended to them and trimmed away again. Which prefix a leaf sequence shares is
remembered, so that requests of the usual shape move no cells. Each cached prefix has a holder sequence after the leaf
sequences, which is never decoded into once the prefix is stored.

A model with recurrent layers also keeps a state of every sequence, the one after its last token, which cannot be
trimmed back. Decodes in leaf sequences write no states (native/llama/tree_walk.h). Where QCLS_TREE_WALK is 0, leaf
sequences have states of their own: a decode empties them, and they share their prefix anew, with its state, before the
next one.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from ..errors import ConfigError, PlanError, QclsError
from ..model import Model
from ..native import NativeContext
from ..plan.decodes import Capacity, DecodeInput, Root
from ..score.rows import RowLayout
from ..statistics import Float32Array, Int32Array
from ..system.lifetimes import Closing
from .prefix_cache import Prefix, PrefixCache, Tokens, store_prefixes

_NOTHING = Root(-1, 0)


class Engine(Closing):
    """One context over a model, its cached prefixes, and its leaf sequences. One thread at a time."""

    def __init__(
        self,
        model: Model,
        context: NativeContext,
        *,
        n_leaf_seqs: int,
        label_tokens: Int32Array | None = None,
        why_no_logits: str | None = None,
    ) -> None:
        """Take over the context. Of its sequences the first n_leaf_seqs are for the leaves of decodes, and the
        others are for prefixes.

        label_tokens: those that the context was opened with; why_no_logits: the message for callers that want logits in
        the rows; None: rows may hold them.
        """
        self.model = model
        self.context = context
        self.capacity = Capacity(n_seqs=n_leaf_seqs, n_tokens=context.n_batch, n_rows=context.n_outputs_max)
        """What one decode holds."""
        # whether leaf sequences still share their prefix after a decode
        self._keeps_shares = not model.has_states or model.facts.walks_trees
        self.n_prefix_cells = context.n_ctx - context.n_batch
        """Cells that prefixes may occupy: the others are a decode's."""
        self._why_no_logits = why_no_logits
        self._holders = range(n_leaf_seqs, context.n_seq_max)
        self.n_found = self.n_stored = self.n_evicted = 0
        """Prefixes that `hold` found in the cache, that it stored, and that it evicted to make space."""
        self.cache = PrefixCache(self._holders, have_states=model.has_states)
        self._shared = [_NOTHING] * n_leaf_seqs  # the prefix whose cells a leaf sequence shares
        self._leaf_seq = np.arange(n_leaf_seqs, dtype=np.int32)
        self._leaf_start = np.zeros(n_leaf_seqs, np.int32)  # how many positions of the prefix it shares
        self._n_groups = 0  # so many times prefixes were decoded together
        self._unstored: list[Prefix] = []  # prefixes in use that `restore` still has to decode
        self.is_clean = True
        """False while cells change, and after an error that leaves them in an unknown state, until `restore`."""
        # with all layers and the output layer there, sequences are trimmed while the GPU computes
        self._queued = model.n_gpu_layers > model.file.n_layer
        no_tokens = np.empty(0, np.int32)
        self._use_layout(RowLayout(model.facts.n_embd, (), 0, no_tokens if label_tokens is None else label_tokens))

    def hold(self, wanted: Sequence[Tokens], state: bytes | None = None) -> list[Prefix]:
        """Put prefixes into the cache and pin them as often as they are named; `release` unpins them.

        Only tokens that no cached prefix shares are decoded. Prefixes that nobody uses are evicted if space is needed.
        state: what `saved_prefixes` returned for the same prefixes, to load instead of decoding, into an empty cache.
        Raises PlanError, with nothing changed, if they do not fit, and DecodeError.
        """
        if not self.is_clean:
            self.restore()
        distinct = list(dict.fromkeys(wanted))
        known = [prefix for tokens in distinct if (prefix := self.cache.get(tokens))]
        for prefix in known:
            prefix.n_users += 1  # so that it is not evicted for the others
        try:
            self._make_space(wanted)
            self._add([tokens for tokens in distinct if self.cache.get(tokens) is None], state)
        finally:
            self.release(known)
        self.n_found += len(known)
        self.n_stored += len(distinct) - len(known)
        prefixes = [prefix for tokens in wanted if (prefix := self.cache.get(tokens))]
        for prefix in prefixes:
            prefix.n_users += 1
            self.cache.use(prefix)
        return prefixes

    def release(self, prefixes: Sequence[Prefix]) -> None:
        """Unpin prefixes that `hold` returned; they stay cached until space is needed."""
        for prefix in prefixes:
            prefix.n_users -= 1

    def forget(self, prefixes: Sequence[Prefix]) -> None:
        """Unpin prefixes that `hold` returned, and evict unused ones; cells that longer prefixes share stay."""
        for prefix in prefixes:
            prefix.n_users -= 1
            if prefix.n_users == 0 and self.cache.get(prefix.tokens) is prefix:
                self._evict(prefix)

    def _make_space(self, wanted: Sequence[Tokens]) -> None:
        while True:
            n_seqs, n_cells = self.cache.n_missing(wanted)
            if n_seqs <= self.cache.n_free_holders and self.cache.n_cells + n_cells <= self.n_prefix_cells:
                return
            idle = self.cache.least_recently_used()
            if idle is None:
                n_free, n_all = self.n_prefix_cells - self.cache.n_cells, self.n_prefix_cells
                free = f"{self.cache.n_free_holders} sequences and {n_free} cells are free of {n_all} for prefixes"
                remedy = "raise runtime.question_prefixes and runtime.question_cells, or close prompt sets"
                raise PlanError(f"{n_seqs} prefixes of {n_cells} tokens do not fit: {free}: {remedy}")
            self._evict(idle)
            self.n_evicted += 1

    def _evict(self, prefix: Prefix) -> None:
        was_clean, self.is_clean = self.is_clean, False
        for leaf, root in enumerate(self._shared):
            if root.holder == prefix.holder:
                self._unshare(leaf)
        self.context.trim(np.array([prefix.holder], np.int32), np.zeros(1, np.int32))
        self.cache.evict(prefix)
        self.is_clean = was_clean

    def _add(self, missing: Sequence[Tokens], state: bytes | None) -> None:
        """Decode prefixes that are not cached, or load their cells."""
        if not missing:
            return
        self._n_groups += 1
        prefixes = [self.cache.reserve(tokens, self._n_groups) for tokens in missing]
        self.is_clean = False
        try:
            if state is None:
                store_prefixes(self.context, self.cache, prefixes)
            else:
                self.context.load_state(state)
                for prefix in prefixes:
                    self.cache.put(prefix)
        except QclsError:
            for prefix in prefixes:
                self.context.trim(np.array([prefix.holder], np.int32), np.zeros(1, np.int32))
                self.cache.give_back(prefix)
            self.is_clean = True
            raise
        self.is_clean = True

    def restore(self) -> None:
        """Empty the KV cache and decode the prefixes in use again: a NaN in a freed cell can spoil later requests."""
        self.is_clean = False
        in_use = [prefix for prefix in self.cache.prefixes if prefix.n_users and prefix not in self._unstored]
        self._unstored = sorted([*self._unstored, *in_use], key=lambda prefix: (prefix.group, prefix.holder))
        self.context.clear()
        self._forget_shares()
        taken = {prefix.holder for prefix in self._unstored}
        self.cache = PrefixCache([seq for seq in self._holders if seq not in taken], have_states=self.model.has_states)
        for _, group in groupby(self._unstored, key=lambda prefix: prefix.group):  # as they were first decoded
            store_prefixes(self.context, self.cache, list(group))
        self._unstored = []
        self.is_clean = True

    def saved_prefixes(self) -> bytes:
        """The cells of the cached prefixes, for `hold`. Leaf sequences give up the cells that they share."""
        self.context.trim(self._leaf_seq, np.zeros_like(self._leaf_seq))
        self._forget_shares()
        return self.context.save_state()

    def _forget_shares(self) -> None:
        self._shared = [_NOTHING] * self.capacity.n_seqs
        self._leaf_start[:] = 0

    def set_rows(self, depths: tuple[int, ...], last_layer: int, label_tokens: Int32Array) -> None:
        """From now on rows hold the logits of these tokens, (n,) int32 ascending, too.

        depths, last_layer: as for `set_depths`. Raises as that does, and ConfigError for an engine whose rows must not
        hold logits.
        """
        if len(label_tokens) and self._why_no_logits:
            raise ConfigError(self._why_no_logits)
        if last_layer == 0:  # logits need all layers
            self.set_depths(depths)
        if not np.array_equal(label_tokens, self.layout.label_tokens):
            self.context.set_label_tokens(label_tokens)
            self._use_layout(replace(self.layout, label_tokens=label_tokens))
        self.set_depths(depths, last_layer)

    def set_depths(self, depths: tuple[int, ...], last_layer: int = 0) -> None:
        """From now on rows hold the residual streams after so many layers, beside the hidden state.

        last_layer: the layer, higher than those, that is computed last, and whose residual stream is the hidden state;
        0: all layers are computed, and the final norm. Where layers are computed that were not before, all prefixes in
        use are stored again. Raises PlanError or ModelError, with nothing changed, for what the model's graph does not
        give, and DecodeError.
        """
        before = self.layout.last_layer
        if (depths, last_layer) == (self.layout.depths, before):
            return
        self.model.check_loaded(last_layer)
        self.context.set_depths(np.array(depths, np.int32), last_layer)
        self._use_layout(replace(self.layout, depths=depths, last_layer=last_layer))
        if before > 0 and (last_layer == 0 or last_layer > before):
            self.restore()

    def _use_layout(self, layout: RowLayout) -> None:
        self.layout = layout
        """What the rows hold."""
        self._rows = np.zeros((self.context.n_outputs_max, self.context.row_size), np.float32)

    def decode(self, wanted: DecodeInput) -> tuple[Float32Array, int, int]:
        """One llama_decode, whose leaf l is in sequence l and grows from wanted.roots[l], which is cached.

        Returns the rows that are read, (n_rows, row size), a view that the next decode overwrites, and the microseconds
        of filling the batch, and of trimming the leaf sequences where the decode waited for it.
        Afterwards the leaf sequences are trimmed back to the cells that they share with their prefixes; if a
        DecodeError leaves cells in an unknown state, the next decode first stores the prefixes again. Raises PlanError,
        before anything is decoded, and DecodeError.
        """
        n = len(wanted.roots)
        if n > self.capacity.n_seqs:
            raise PlanError(f"a decode of {n} leaves, and there are {self.capacity.n_seqs} sequences for them")
        if not self.is_clean:
            self.restore()
        self.is_clean = False
        for leaf, root in enumerate(wanted.roots):
            if self._shared[leaf] is not root and self._shared[leaf] != root:
                self._share(leaf, root)
        rows = self._rows[: wanted.n_rows]
        try:
            batch_us, trim_us = self.context.decode(
                wanted.token,
                wanted.pos,
                wanted.seq_offset,
                wanted.seq_id,
                wanted.output,
                rows,
                self._leaf_seq[:n],
                self._leaf_start[:n],
                queued=self._queued,
            )
        except PlanError:  # nothing was computed
            self.is_clean = True
            raise
        self.is_clean = True
        return rows, batch_us, trim_us

    def _share(self, leaf: int, root: Root) -> None:
        self._unshare(leaf)
        if root.n_cached > 0:
            self.context.share(root.holder, leaf, 0, root.n_cached)
        if self._keeps_shares:  # otherwise the decode empties the leaf
            self._shared[leaf] = root
            self._leaf_start[leaf] = root.n_cached

    def _unshare(self, leaf: int) -> None:
        self._shared[leaf] = _NOTHING
        self._leaf_start[leaf] = 0
        self.context.trim(self._leaf_seq[leaf : leaf + 1], np.zeros(1, np.int32))

    def close(self) -> None:
        """Free the context; may be called again."""
        self.context.close()
