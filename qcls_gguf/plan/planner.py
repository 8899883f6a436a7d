"""The one way from the tokens of queries to the decodes that answer them.

Where every prompt takes its fast path, the token tree of one query depends on the lengths of its fragments alone, not
on their tokens, as long as prompts that grow from one cached prefix have one fragment text: their tokens are the same,
and what follows is fixed. So a plan is made once for each length, as a template, and a request only fills in its
tokens; the templates of several queries that share no token are put side by side. Other requests are planned by growing
their token tree. Single queries, several and continuations of kept queries differ in what is planned, not in how.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from ..statistics import Int32Array
from .growth import Addition, Capacity, DecodePlan, plan_decodes
from .kept_queries import Continuation, KeptQueries, SlotUpdate
from .shapes import joined, padded
from .templates import Fragments, Templates
from .tree import KeptRoot, Root


class Decode(NamedTuple):
    """One decode of a request."""

    plan: DecodePlan
    token: Int32Array
    """(n_tokens,)"""
    kept: Sequence[SlotUpdate] = ()
    """what slots keep of it"""


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """The decodes that answer some queries."""

    decodes: Sequence[Decode]
    n_cached: int
    """tokens of the rendered prompts that come from the cache"""
    fast_path: Sequence[bool]
    """query by query, prompt by prompt"""

    @property
    def n_tokens(self) -> int:
        """Tokens that the decodes feed."""
        return sum(decode.plan.plan.n_tokens for decode in self.decodes)


class TokenizedQuery(Protocol):
    """A query with its tokens, as it is asked of a prompt set."""

    @property
    def templates(self) -> Templates:
        """The templates of the prompt set."""

    @property
    def fragments(self) -> Fragments:
        """The query's tokens."""


class Planner:
    """Plans requests to one engine. One thread at a time where queries are kept; otherwise any thread."""

    def __init__(self, capacity: Capacity, n_positions: int, kept_queries: KeptQueries | None = None) -> None:
        """capacity: of one decode; n_positions: how many the model was trained for, <= 0 if that is not known;
        kept_queries: the slots whose queries may be continued.
        """
        self._capacity = capacity
        self._n_positions = n_positions
        self._kept_queries = kept_queries

    def plan(self, asked: Sequence[TokenizedQuery], *, keep: bool = True) -> RequestPlan:
        """The decodes for some queries, each with its prompt set. Raises PlanError if there is nothing to feed.

        keep: queries that begin like a kept one continue it, and are kept themselves; the engine must then run these
        decodes next.
        """
        varying: list[Fragments | None] = []
        for query in asked:
            varying.append(query.templates.varying(query.fragments))
        continuations: Sequence[Continuation | None] = [None] * len(asked)
        if keep and self._kept_queries:
            continuations = self._kept_queries.find(
                [(asked[i].templates.layout, tokens) for i, tokens in enumerate(varying)]
            )
        if len(asked) == 1:
            made = _by_template(asked[0].templates, varying[0], continuations[0])
        elif _are_apart(asked, varying, continuations):
            made = self._side_by_side(
                [_by_template(asked[i].templates, tokens, continuations[i]) for i, tokens in enumerate(varying)]
            )
        else:
            made = None
        return made or self._grown(asked, continuations)

    def padded(self, request: RequestPlan) -> RequestPlan:
        """The same decodes, padded with tokens whose rows are not read, so that shapes repeat."""
        most, n_positions = self._capacity.n_tokens, self._n_positions
        longer = [
            padded(decode.plan, decode.token, most_tokens=most, n_positions=n_positions) for decode in request.decodes
        ]
        return replace(request, decodes=[Decode(plan, token) for plan, token in longer])

    def _side_by_side(self, parts: Sequence[RequestPlan | None]) -> RequestPlan | None:
        """One decode of queries that were planned one by one; None if it would be too large, or if a part is None."""
        made = [part for part in parts if part]
        decodes = [part.decodes[0] for part in made]
        plans = [decode.plan.plan for decode in decodes]
        if len(made) < len(parts) or not self._capacity.holds(
            sum([plan.n_leaves for plan in plans]),
            sum([plan.n_tokens for plan in plans]),
            sum([plan.n_outputs for plan in plans]),
        ):
            return None
        kept: list[SlotUpdate] = []
        first_leaf = 0
        for decode in decodes:
            for each in decode.kept:
                cells = [(leaf + first_leaf, seq, start, end) for leaf, seq, start, end in each.cells]
                kept.append(replace(each, cells=cells))
            first_leaf += decode.plan.plan.n_leaves
        together = joined([decode.plan for decode in decodes], [decode.token for decode in decodes])
        return RequestPlan(
            [Decode(together, together.plan.token, kept)],
            sum([part.n_cached for part in made]),
            [fast for part in made for fast in part.fast_path],
        )

    def _grown(self, asked: Sequence[TokenizedQuery], continuations: Sequence[Continuation | None]) -> RequestPlan:
        """The decodes of the token tree of some queries."""
        by_query = [
            query.templates.additions(query.fragments, continuation)
            for query, continuation in zip(asked, continuations, strict=True)
        ]
        additions = [addition for each in by_query for addition in each]
        plans = plan_decodes(additions, self._capacity)
        updates = _slot_updates(continuations, plans, by_query) if any(continuations) else [[] for _ in plans]
        return RequestPlan(
            [Decode(plan, plan.plan.token, kept) for plan, kept in zip(plans, updates, strict=True)],
            sum(addition.root.n_cached for addition in additions),
            [addition.fast_path for addition in additions],
        )


def _by_template(
    templates: Templates, varying: Fragments | None, continuation: Continuation | None
) -> RequestPlan | None:
    """The decode of one query by a template for the tokens that are not kept; None if there is no such template."""
    if not varying:
        return None
    n_kept = continuation.n_kept if continuation else 0
    rest = [tokens[n_kept:] for tokens in varying] if n_kept else varying
    template = templates.of_lengths(tuple(map(len, rest)))
    if template is None:
        return None
    plan = template.continued(n_kept, continuation.roots) if continuation and n_kept else template.decode
    kept: Sequence[SlotUpdate] = ()
    if continuation:
        (kept,) = continuation.slot_updates([{root.holder: leaf for leaf, root in enumerate(plan.leaf_roots)}])
    return RequestPlan(
        (Decode(plan, template.fill(rest), kept),),
        template.n_cached + n_kept * template.n_prompts,
        [True] * template.n_prompts,
    )


def _are_apart(
    asked: Sequence[TokenizedQuery],
    varying: Sequence[Fragments | None],
    continuations: Sequence[Continuation | None],
) -> bool:
    """Whether no two queries share new tokens: where two grow from the same cells, their next tokens differ."""
    begins = []
    for query, tokens, continuation in zip(asked, varying, continuations, strict=True):
        if not tokens:  # off the fast path
            return False
        layout, n_kept = query.templates.layout, continuation.n_kept if continuation else 0
        roots: Sequence[Root] = continuation.roots if continuation and n_kept else layout.roots
        for root, fragment in zip(roots, layout.fragment_of, strict=True):
            if len(tokens[fragment]) == n_kept:  # the next token is one of the text after the query
                return False
            seq = root.seq if isinstance(root, KeptRoot) else root.holder
            begins.append((seq, root.n_cached, int(tokens[fragment][n_kept])))
    return len(set(begins)) == len(begins)


def _slot_updates(
    continuations: Sequence[Continuation | None], plans: Sequence[DecodePlan], by_query: Sequence[Sequence[Addition]]
) -> list[list[SlotUpdate]]:
    """For each decode what slots keep of it. Never overwrites a slot that a later decode reads."""
    n_readers = Counter(each.read_slot for each in continuations if each)
    updates: list[list[SlotUpdate]] = [[] for _ in plans]
    for each, leaves in zip(continuations, _leaves(plans, by_query), strict=True):
        # With several decodes, a slot is written only if no other query reads it.
        if each and (len(plans) == 1 or n_readers[each.write_slot] <= (each.read_slot is each.write_slot)):
            for of_decode, more in zip(updates, each.slot_updates(leaves), strict=True):
                of_decode += more
    return updates


def _leaves(plans: Sequence[DecodePlan], by_query: Sequence[Sequence[Addition]]) -> list[list[dict[int, int]]]:
    """For each query and decode, one leaf of the query for each of its roots in that decode, by the root's holder."""
    leaf_of: list[list[dict[int, int]]] = [[{} for _ in plans] for _ in by_query]
    additions = iter([(query, addition) for query, of_query in enumerate(by_query) for addition in of_query])
    for decode, plan in enumerate(plans):
        edges = [0]
        of_decode = []
        while edges[-1] < len(plan.rows):
            query, addition = next(additions)
            of_decode.append((query, addition.root.holder))
            edges.append(edges[-1] + len(addition.trie.edges))
        for (query, holder), leaf in zip(of_decode, plan.leaves_of(np.array(edges[:-1])).tolist(), strict=True):
            leaf_of[query][decode][holder] = leaf
    return leaf_of
