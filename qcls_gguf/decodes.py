"""The decodes that answer some items: from the tokens of their queries to plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .active_set import Item
from .engine.engine import Engine
from .engine.kept_queries import Continuation, Kept
from .plan.joined import joined
from .plan.planner import Addition, Capacity, DecodePlan, additions_of, plan_decodes
from .plan.rungs import on_a_rung
from .plan.templates import Templates
from .plan.tree import Int32Array, KeptRoot, Root


@dataclass(frozen=True, slots=True)
class Tokenized:
    """An item with its tokens."""

    item: Item
    fragments: Sequence[Int32Array]
    """of each distinct fragment of its set with the query in it"""

    @property
    def n_tokens(self) -> int:
        """Tokens of all distinct fragments."""
        return sum(map(len, self.fragments))


@dataclass(frozen=True, slots=True)
class Decodes:
    """What the decodes of a request feed."""

    plans: Sequence[DecodePlan]
    tokens: Sequence[Int32Array]
    """of each decode"""
    n_cached: int
    """tokens of the rendered prompts that come from the cache"""
    fast_path: Sequence[bool]
    """item by item, prompt by prompt"""
    kept: Sequence[Sequence[Kept]]
    """of each decode, what slots keep of it"""
    order: Sequence[int] | None = None
    """the items' numbers in the order in which they are planned, which the decodes' rows have, too; None: their own"""


def decodes_of(items: Sequence[Tokenized], engine: Engine, *, from_kept: bool = False) -> Decodes:
    """The decodes of some items. Raises PlanError for nothing to feed.

    from_kept: where the engine keeps queries, those that begin like a kept one go on from there, and are kept; these
    decodes are its next ones then. Raises DecodeError where prefixes had to be stored anew for that and could not.
    """
    capacity = engine.capacity
    templates = [each.item[0].templates for each in items]
    behind = [each.behind(item.fragments) for each, item in zip(templates, items, strict=True)]
    found: Sequence[Continuation | None] = [None] * len(items)
    if from_kept and engine.kept_queries:
        engine.mend()  # which may forget kept queries
        found = engine.kept_queries.find(
            [(each.layout, tokens) for each, tokens in zip(templates, behind, strict=True)]
        )
    if len(items) == 1:
        made = _alone(templates[0], behind[0], found[0])
    else:
        made = _side_by_side(templates, behind, found, capacity) if capacity.pass_tokens is None else None
    if made is not None:
        return made
    by_item = [additions_of_item(item, each) for item, each in zip(items, found, strict=True)]
    order = None
    if capacity.pass_tokens is not None and len(items) > 1:
        # queries of one length stand together: where they take several decodes, each takes few passes
        order = sorted(range(len(items)), key=lambda item: items[item].n_tokens)
    plans = plan_decodes([addition for item in order or range(len(items)) for addition in by_item[item]], capacity)
    additions = [addition for each in by_item for addition in each]
    return Decodes(
        plans,
        [decode.plan.token for decode in plans],
        sum(addition.root.n_cached for addition in additions),
        [addition.fast_path for addition in additions],
        _kept(found, plans, by_item) if any(found) else [()] * len(plans),
        order,
    )


def _alone(templates: Templates, behind: Sequence[Int32Array] | None, found: Continuation | None) -> Decodes | None:
    """The decode of a single item by the plan of its length, or of the length of what is not kept."""
    if not behind:
        return None
    n_kept = found.n_kept if found else 0
    rest = [tokens[n_kept:] for tokens in behind] if n_kept else behind
    template = templates.of_lengths(tuple(map(len, rest)))
    if template is None:
        return None
    decode = template.continued(n_kept, found.roots) if found and n_kept else template.decode
    kept = found.kept([{root.holder: leaf for leaf, root in enumerate(decode.leaf_roots)}]) if found else [()]
    return Decodes(
        (decode,),
        (template.fill(rest),),
        template.n_cached + n_kept * template.n_prompts,
        [True] * template.n_prompts,
        kept,
    )


def _side_by_side(
    templates: Sequence[Templates],
    behind: Sequence[Sequence[Int32Array] | None],
    found: Sequence[Continuation | None],
    capacity: Capacity,
) -> Decodes | None:
    """The decode of several items by the plans of each alone. None where two share tokens, or it would be too large."""
    if not _are_apart(templates, behind, found, capacity.n_tokens):
        return None
    parts = [each for each in map(_alone, templates, behind, found) if each is not None]
    plans = [part.plans[0].plan for part in parts]
    if len(parts) < len(templates) or not capacity.holds(
        sum([plan.n_leaves for plan in plans]),
        sum([plan.n_tokens for plan in plans]),
        sum([plan.n_outputs for plan in plans]),
    ):
        return None
    kept: list[Kept] = []
    first_leaf = 0
    for part, plan in zip(parts, plans, strict=True):
        for each in part.kept[0]:
            cells = [(leaf + first_leaf, seq, start, end) for leaf, seq, start, end in each.cells]
            kept.append(Kept(slot=each.slot, fragments=each.fragments, cells=cells))
        first_leaf += plan.n_leaves
    decode = joined([part.plans[0] for part in parts], [part.tokens[0] for part in parts])
    return Decodes(
        (decode,),
        (decode.plan.token,),
        sum([part.n_cached for part in parts]),
        [fast for part in parts for fast in part.fast_path],
        [kept],
    )


def _are_apart(
    templates: Sequence[Templates],
    behind: Sequence[Sequence[Int32Array] | None],
    found: Sequence[Continuation | None],
    n_most: int,
) -> bool:
    """Whether no two items share tokens, none beginning like another one behind the same cells, and whether what they
    feed of their queries is no more than n_most tokens.
    """
    begins, n_fed = [], 0
    for each, tokens, go_on in zip(templates, behind, found, strict=True):
        if not tokens:  # off the fast path
            return False
        n_kept = go_on.n_kept if go_on else 0
        roots: Sequence[Root] = go_on.roots if go_on and n_kept else each.layout.roots
        for root, fragment in zip(roots, each.layout.fragment_of, strict=True):
            if len(tokens[fragment]) == n_kept:  # it begins with what follows the query
                return False
            source = root.seq if isinstance(root, KeptRoot) else root.holder
            begins.append((source, root.n_cached, int(tokens[fragment][n_kept])))
            n_fed += len(tokens[fragment]) - n_kept
    return n_fed <= n_most and len(set(begins)) == len(begins)


def additions_of_item(item: Tokenized, found: Continuation | None = None) -> list[Addition]:
    """What each prompt of an item's set adds for its query. Raises PlanError where there is nothing to feed."""
    active, _ = item.item
    tokens = {text: tokens.tolist() for text, tokens in zip(active.prompts.fragments, item.fragments, strict=True)}
    prompts = active.prompts.prompts
    additions = additions_of(prompts, active.holders, [tokens[prompt.fragment] for prompt in prompts])
    if found is None or found.n_kept == 0:
        return additions
    roots = {root.holder: root for root in found.roots}
    return [replace(each, root=roots[each.root.holder], tokens=each.tokens[found.n_kept :]) for each in additions]


def _kept(
    found: Sequence[Continuation | None], plans: Sequence[DecodePlan], by_item: Sequence[Sequence[Addition]]
) -> list[list[Kept]]:
    """What slots keep of each decode. In several decodes no slot is written that another item goes on from, which a
    later decode may do.
    """
    n_readers = Counter(each.source for each in found if each)
    kept: list[list[Kept]] = [[] for _ in plans]
    for each, leaves in zip(found, _leaves(plans, by_item), strict=True):
        if each and (len(plans) == 1 or n_readers[each.slot] <= (each.source is each.slot)):
            for of_decode, left in zip(kept, each.kept(leaves), strict=True):
                of_decode += left
    return kept


def _leaves(plans: Sequence[DecodePlan], by_item: Sequence[Sequence[Addition]]) -> list[list[dict[int, int]]]:
    """For each item and decode, a leaf of the item behind each of its roots in that decode, by the root's holder."""
    found: list[list[dict[int, int]]] = [[{} for _ in plans] for _ in by_item]
    additions = iter([(item, addition) for item, of_item in enumerate(by_item) for addition in of_item])
    for decode, plan in enumerate(plans):
        edges = [0]
        of_decode = []
        while edges[-1] < len(plan.rows):
            item, addition = next(additions)
            of_decode.append((item, addition.root.holder))
            edges.append(edges[-1] + len(addition.trie.edges))
        for (item, holder), leaf in zip(of_decode, plan.leaves_of(np.array(edges[:-1])).tolist(), strict=True):
            found[item][decode][holder] = leaf
    return found


def filled_up(decodes: Decodes, engine: Engine) -> Decodes:
    """The same decodes filled up, so that shapes repeat."""
    capacity, n_positions = engine.capacity, engine.model.facts.n_ctx_train
    if capacity.pass_tokens is not None:  # the shapes of its passes would not be fewer
        return decodes
    filled = [
        on_a_rung(decode, token, most_tokens=capacity.n_tokens, n_positions=n_positions)
        for decode, token in zip(decodes.plans, decodes.tokens, strict=True)
    ]
    return replace(decodes, plans=[each for each, _ in filled], tokens=[each for _, each in filled])
