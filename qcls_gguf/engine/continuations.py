"""Log-probabilities of given continuations of texts over the whole vocabulary: what evaluation harnesses ask for.

Texts are scored in the order of their tokens, many in one decode, as branches of one token tree: what texts have in
common is computed once, also from one decode to the next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ..config.schema import RuntimeConfig
from ..config.words import counted
from ..errors import PlanError
from ..model import Model
from ..model.placement import flash_attention
from ..native import NativeContext
from ..plan.tree import Plan, TokenTree
from ..prompts.compiled import common_prefix
from ..system.closing import Closing
from .cores import threads
from .prefix_cache import Tokens

_N_LEAVES = 64
"""Texts of one token tree, each with tokens of its own at its end."""
_USUAL_N_CTX = 4096
_ROWS_BYTES = 64 << 20
"""Of the logits of one decode, about."""


class Continuation(NamedTuple):
    """A text as tokens, of which those from n_given on are scored."""

    tokens: Tokens
    n_given: int
    """at least 1, because the first token follows nothing"""


class TokenScore(NamedTuple):
    """How probable a token is after those before it."""

    log_probability: float
    best: int
    """the token that is the most probable there"""
    best_log_probability: float


class ContinuationScorer(Closing):
    """Scores continuations with a context of its own. One thread at a time; it is closed before its model."""

    def __init__(self, model: Model, runtime: RuntimeConfig, n_ctx: int | None = None) -> None:
        """n_ctx: the most tokens of a text; none: what the model was trained with, at most 4,096.

        Raises ConfigError for a model of which only the first layers are loaded, and ModelError if memory is lacking.
        """
        model.check_loaded()
        n_ctx = n_ctx or min(model.facts.n_ctx_train, _USUAL_N_CTX)
        n_batch = max(2, min(n_ctx, 2048 if model.n_gpu_layers else 512))
        n_rows = max(2, min(n_batch, _ROWS_BYTES // (4 * model.facts.n_vocab)))
        self._n_leaves = min(_N_LEAVES, n_rows - 1)
        self._n_cells = 2 * max(n_ctx, n_batch)
        self.n_ctx = n_ctx
        self._model = model
        self._has_states = model.has_states
        self._context = NativeContext(
            model.native,
            n_ctx=self._n_cells,
            n_batch=n_batch,
            n_seq_max=self._n_leaves + 1,
            n_outputs_max=n_rows,
            n_threads=threads(runtime).n,
            hidden_only=False,
            flash_attn=flash_attention(runtime, model.n_gpu_layers),
            kv_type=runtime.kv_type,
        )
        self._rows = np.empty((n_rows, self._context.row_size), np.float32)
        self._leaves = np.arange(self._n_leaves, dtype=np.int32)
        self._stem: Tokens = ()
        """the tokens whose cells the last sequence holds"""

    def tokens(self, text: str, *, adds_first: bool = True) -> list[int]:
        """Tokens of a text, in which special tokens may be spelt; adds_first: with the first one that the model wants
        before them, unless the text spells it already.
        """
        tokens: list[int] = self._model.tokenize(text, parse_special=True).tolist()
        first = self._model.first_token
        return [first, *tokens] if adds_first and first >= 0 and tokens[:1] != [first] else tokens

    def scores(
        self, texts: Sequence[Continuation], on_scored: Callable[[int], None] | None = None
    ) -> list[list[TokenScore]]:
        """For each text the scores of its tokens from n_given on. on_scored(n) is called after each n texts.

        Raises PlanError for a text that is too long or without a given token, with nothing computed, and DecodeError.
        """
        for index, text in enumerate(texts):
            if len(text.tokens) > self.n_ctx:
                raise PlanError(f"text {index} has {len(text.tokens)} tokens, at most {self.n_ctx}: shorten it")
            if not 1 <= text.n_given <= len(text.tokens):
                n, given = counted(len(text.tokens), "token"), text.n_given
                raise PlanError(f"text {index} of {n} gives {given} of them: give at least 1, and at most all")
        found: list[list[TokenScore]] = [[] for _ in texts]
        order = sorted(range(len(texts)), key=lambda index: texts[index].tokens)
        try:
            while order:
                order = order[self._score_some(texts, order, found, on_scored) :]
        except BaseException:
            self._context.clear()
            self._stem = ()
            raise
        return found

    def _score_some(
        self,
        texts: Sequence[Continuation],
        order: Sequence[int],
        found: list[list[TokenScore]],
        on_scored: Callable[[int], None] | None,
    ) -> int:
        """Score the first texts of an order, as many as one tree has room for. Returns how many."""
        tree, roots, cached = TokenTree(), dict[int, int](), list[int]()
        wanted: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)  # by node: (text, the token that follows)
        before: Tokens = ()
        n = end = 0
        for index in order:
            fed, n_given = texts[index].tokens[:-1], texts[index].n_given
            n_cached = min(common_prefix(self._stem, fed), n_given - 1)
            is_shared = not self._has_states and n_cached in roots
            n_more = len(fed) - max(n_cached, common_prefix(before, fed) if is_shared else 0)
            if n and (len(self._stem) + len(tree) + n_more > self._n_cells or tree.n_leaves() == self._n_leaves):
                break
            n += 1
            if n_given > len(fed):
                continue
            before = fed
            if not is_shared:
                roots[n_cached] = tree.add_root(n_cached)
                cached.append(n_cached)
            end = tree.add_path(roots[n_cached], fed[n_cached:n_given])
            for place in range(n_given, len(fed) + 1):
                wanted[end].append((index, texts[index].tokens[place]))
                tree.read(end)
                end = tree.add_path(end, fed[place : place + 1])
        if len(tree):
            plan = tree.finish(self._leaves.tolist())
            self._decode(plan, cached, wanted, found)
            following = texts[order[n]].tokens if n < len(order) else before
            self._keep(before[: common_prefix(before, following)], int(plan.seq_id[plan.seq_offset[end]]))
        if on_scored:
            on_scored(n)
        return n

    def _decode(
        self,
        plan: Plan,
        cached: Sequence[int],
        wanted: dict[int, list[tuple[int, int]]],
        found: list[list[TokenScore]],
    ) -> None:
        """Decode a plan in slices, and note the scores of the tokens that are wanted after its nodes."""
        for leaf, root in enumerate(plan.leaf_root):
            if cached[root]:
                self._context.share(self._n_leaves, leaf, 0, cached[root])
        n_read = np.cumsum(plan.output)
        start = rows_before = 0
        while start < plan.n_tokens:
            end = min(start + self._context.n_batch, plan.n_tokens)
            end = min(end, int(np.searchsorted(n_read, rows_before + len(self._rows), "right")))
            rows = self._rows[: n_read[end - 1] - rows_before]
            self._context.decode(*plan.part(start, end), rows)
            best = rows.argmax(axis=1)
            highest = rows[np.arange(len(rows)), best]
            log_sums = highest + np.log(np.exp(rows - highest[:, None]).sum(axis=1))
            for row, node in enumerate((start + np.flatnonzero(plan.output[start:end])).tolist()):
                of_best = float(highest[row] - log_sums[row])
                for index, token in wanted[node]:
                    score = TokenScore(float(rows[row, token] - log_sums[row]), int(best[row]), of_best)
                    found[index].append(score)
            start, rows_before = end, int(n_read[end - 1])

    def _keep(self, stem: Tokens, leaf: int) -> None:
        """Keep the cells of the first tokens that a leaf has, and free all others."""
        self._stem = () if self._has_states else stem  # there is only the state after a leaf's last token
        self._context.trim(np.array([self._n_leaves], np.int32), np.zeros(1, np.int32))
        if self._stem:
            self._context.share(leaf, self._n_leaves, 0, len(self._stem))
        self._context.trim(self._leaves, np.zeros_like(self._leaves))

    def close(self) -> None:
        """Free the context; may be called again."""
        self._context.close()
