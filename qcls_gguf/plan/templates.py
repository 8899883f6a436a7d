"""Plans made once for each length of query: a request of the usual shape only fills in its tokens.

Where every prompt takes its fast path, the tree of one query depends on the lengths of its fragments alone, not on
their tokens, as long as prompts that grow from one cached prefix have one fragment text: their tokens are the same,
and what follows is fixed. Other requests are planned token by token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..engine.engine import Engine
from ..errors import PlanError
from ..prompts.compiled import Prompt
from ..score.result import Counts
from .planner import Chunk, IndexArray, Planner, Unit, counts_of
from .tree import Int32Array

_N_KEPT = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A plan of one query that lacks the query's tokens."""

    chunk: Chunk
    units: tuple[Unit, ...]
    counts: Counts
    node: IndexArray
    """(n_filled,) the nodes that are filled in"""
    source: IndexArray
    """(n_filled,) with which of the fragments' tokens behind their stable ones, one fragment after the other"""

    def any_tokens(self) -> Int32Array:
        """Tokens that compute as much as a query's."""
        token = self.chunk.plan.token.copy()
        token[self.node] = 0
        return token

    def fill(self, behind: Int32Array) -> Int32Array:
        """The plan's tokens, from the fragments' tokens behind their stable ones, one fragment after the other."""
        token = self.chunk.plan.token.copy()
        token[self.node] = behind[self.source]
        return token


class Templates:
    """The templates of an engine's prompts, made when a length is first asked for."""

    def __init__(self, engine: Engine, prompts: Sequence[Prompt], planner: Planner, n_empty: Sequence[int]) -> None:
        """n_empty[p]: the fragment length of prompt p for an empty query."""
        self._planner = planner
        self._n_vocab = engine.model.facts.n_vocab
        fragments = list(dict.fromkeys(prompt.fragment for prompt in prompts))
        self._fragment_of = [fragments.index(prompt.fragment) for prompt in prompts]
        stable = {prompt.fragment: prompt.stable for prompt in prompts}
        self._stable = [np.array(stable[fragment], np.int32) for fragment in fragments]
        empty = {prompt.fragment: n for prompt, n in zip(prompts, n_empty, strict=True)}
        self._n_empty = [empty[fragment] for fragment in fragments]
        by_prefix: dict[tuple[int, ...], set[tuple[str, str]]] = {}
        for prompt in prompts:
            by_prefix.setdefault(prompt.prefix, set()).add(prompt.fragment)
        self._possible = all(len(texts) == 1 for texts in by_prefix.values())
        self._kept: dict[tuple[int, ...], Template | None] = {}

    def find(self, fragments: Sequence[Int32Array]) -> tuple[Template, Int32Array] | None:
        """The template for the tokens of each distinct fragment, and what fills it; none off the fast path.

        fragments: in the order in which the prompts first have them.
        """
        if not self._possible:
            return None
        for tokens, stable in zip(fragments, self._stable, strict=True):
            if tokens[: len(stable)].tobytes() != stable.tobytes():
                return None
        behind = [tokens[len(stable) :] for tokens, stable in zip(fragments, self._stable, strict=True)]
        template = self.of_lengths(tuple(map(len, behind)))
        if template is None:
            return None
        return template, behind[0] if len(behind) == 1 else np.concatenate(behind)

    def of_lengths(self, lengths: tuple[int, ...]) -> Template | None:
        """The template for distinct fragments that have so many tokens behind their stable ones."""
        if lengths not in self._kept:
            if len(self._kept) >= _N_KEPT:
                self._kept.clear()
            self._kept[lengths] = self._make(lengths)
        return self._kept[lengths]

    def of_query(self, n_tokens: int) -> Template | None:
        """The template for a query of so many tokens; -1 where it merges with the text around it."""
        lengths = [n + n_tokens - len(stable) for n, stable in zip(self._n_empty, self._stable, strict=True)]
        return self.of_lengths(tuple(lengths)) if self._possible and min(lengths) >= 0 else None

    def _make(self, lengths: tuple[int, ...]) -> Template | None:
        # A token that is no token says where the real one comes from.
        start = np.cumsum([self._n_vocab, *lengths]).tolist()
        fragments = [
            [*stable.tolist(), *range(first, first + n)]
            for stable, first, n in zip(self._stable, start, lengths, strict=False)
        ]
        try:
            units = self._planner.units([fragments[index] for index in self._fragment_of])
        except PlanError:  # which the request itself will raise
            return None
        if not all(unit.fast_path for unit in units):
            return None
        chunks = self._planner.chunks(units)
        if len(chunks) > 1:
            return None
        token = chunks[0].plan.token
        node: npt.NDArray[np.intp] = np.flatnonzero(token >= self._n_vocab)
        return Template(
            chunk=chunks[0],
            units=tuple(units),
            counts=counts_of(1, units, chunks),
            node=node,
            source=(token[node] - self._n_vocab).astype(np.intp),
        )
