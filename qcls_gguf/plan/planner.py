"""From queries' tokens to the plans of as few decodes as the limits allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..engine.engine import Engine, Root
from ..prompts.compiled import Prompt
from ..score.result import Counts
from .tree import Plan, TokenTree

IndexArray = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One prompt of one query: what it adds to the tree."""

    prompt: int
    root: Root
    tokens: list[int]
    fast_path: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Units that share a decode, their plan, and the row of the hidden state that each edge of their tries reads."""

    plan: Plan
    leaf_roots: list[Root]
    """where each leaf of the plan grows from"""
    rows: IndexArray
    """(n_edges,)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grown:
    """The tree of some units, and the node that each edge of their label tries reads."""

    tree: TokenTree
    roots: list[Root]
    read: list[int]

    def fits(self, limits: tuple[int, int, int]) -> bool:
        """Whether one decode holds it: sequences, tokens, rows."""
        n_seqs, n_tokens, n_rows = limits
        return self.tree.n_leaves() <= n_seqs and len(self.tree) <= n_tokens and len(set(self.read)) <= n_rows

    def finish(self, engine: Engine) -> Chunk:
        plan = self.tree.finish(engine.leaf_seqs(self.tree.n_leaves()))
        leaf_roots = [self.roots[root] for root in plan.leaf_root]
        return Chunk(plan=plan, leaf_roots=leaf_roots, rows=plan.node_row[self.read].astype(np.intp))


class Planner:
    """Plans requests over the prompts of an engine."""

    def __init__(self, engine: Engine, prompts: Sequence[Prompt]) -> None:
        self._engine = engine
        self._prompts = prompts
        self._holders = [engine.holder(prompt.prefix) for prompt in prompts]

    def units(self, fragments: Sequence[list[int]]) -> list[Unit]:
        """What each prompt adds for one query, given the tokens of its fragment with the query in it.

        Raises PlanError where there is nothing to feed.
        """
        return [self._unit(index, fragment) for index, fragment in enumerate(fragments)]

    def _unit(self, index: int, fragment: list[int]) -> Unit:
        prompt = self._prompts[index]
        n_cached, tokens = prompt.new_tokens(fragment)
        return Unit(
            prompt=index,
            root=Root(holder=self._holders[index], n_cached=n_cached),
            tokens=tokens,
            fast_path=n_cached == len(prompt.prefix),
        )

    def chunks(self, units: Sequence[Unit]) -> list[Chunk]:
        """The plans of as few decodes as the limits allow: one, or else consecutive units counted as unshared."""
        engine = self._engine
        room = full = (engine.n_free, engine.context.n_batch, engine.context.n_outputs_max)
        whole = self._grow(units)
        if whole.fits(full):
            return [whole.finish(engine)]
        groups: list[list[Unit]] = [[]]
        for unit in units:
            trie = self._prompts[unit.prompt].trie
            need = (trie.n_leaves, len(unit.tokens) + len(trie.fed), len(trie.read))
            if any(n > left for n, left in zip(need, room, strict=True)):
                groups.append([])
                room = full
            groups[-1].append(unit)
            room = (room[0] - need[0], room[1] - need[1], room[2] - need[2])
        return [self._grow(group).finish(engine) for group in groups]

    def _grow(self, units: Sequence[Unit]) -> _Grown:
        tree = TokenTree()
        roots: dict[Root, int] = {}
        read: list[int] = []
        for unit in units:
            root = roots.get(unit.root)
            if root is None:
                root = roots[unit.root] = tree.add_root(unit.root.n_cached)
            trie = self._prompts[unit.prompt].trie
            nodes = [tree.add_path(root, unit.tokens)]
            for parent, token in trie.fed:
                nodes.append(tree.add_path(nodes[parent], (token,)))
            for node in trie.read:
                tree.read(nodes[node])
            read += [nodes[edge.node] for edge in trie.edges]
        return _Grown(tree=tree, roots=list(roots), read=read)


def counts_of(n_queries: int, units: Sequence[Unit], chunks: Sequence[Chunk]) -> Counts:
    """What the decodes of a request feed and read."""
    return Counts(
        n_queries=n_queries,
        n_decodes=len(chunks),
        n_tokens_new=sum(chunk.plan.n_tokens for chunk in chunks),
        n_tokens_cached=sum(unit.root.n_cached for unit in units),
        n_positions=sum(chunk.plan.n_outputs for chunk in chunks),
    )
