"""Plans made once for each length of query: a request of the usual shape only fills in its tokens; see planner.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..errors import PlanError
from ..prompts.prompt_set import PromptSet
from ..statistics import Int32Array, IntArray
from .growth import Addition, Capacity, DecodePlan, additions_of, plan_decodes
from .kept_queries import Continuation, Layout
from .tree import Plan, Root

Fragments = Sequence[Int32Array]
"""the tokens of each distinct fragment of a prompt set with the query in it, in the order of `PromptSet.fragments`"""

_MOST_BYTES = 32 << 20
"""Most bytes of all templates: those of queries of up to 256 tokens take 10.5 MiB for the 8 prompts of fashion-8."""
_OBJECTS_BYTES = 2048
"""about what the objects around the arrays of a template take"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A plan of one query that lacks the query's tokens."""

    decode: DecodePlan
    n_prompts: int
    n_cached: int
    """tokens of the rendered prompts that come from the cache"""
    node: IntArray
    """(n_filled,) the nodes that are filled in"""
    source: IntArray
    """(n_filled,) the token that fills each node: its place among the varying tokens of all fragments, joined"""

    @property
    def n_bytes(self) -> int:
        """Bytes of its arrays."""
        plan = self.decode.plan
        arrays = (plan.token, plan.pos, plan.seq_offset, plan.seq_id, plan.output)
        return sum(each.nbytes for each in (*arrays, self.decode.rows, self.node, self.source))

    def continued(self, n_kept: int, roots: Sequence[Root]) -> DecodePlan:
        """This decode, n_kept positions later; roots: the layout's roots, each n_kept tokens later."""
        plan = self.decode.plan
        return DecodePlan(  # each by its constructor, as this is done for each request: dataclasses.replace is slow
            plan=Plan(
                token=plan.token,
                pos=plan.pos + np.int32(n_kept),
                seq_offset=plan.seq_offset,
                seq_id=plan.seq_id,
                output=plan.output,
                leaf_root=plan.leaf_root,
                n_outputs=plan.n_outputs,
            ),
            leaf_roots=tuple([roots[root] for root in plan.leaf_root]),  # a plan's roots have the layout's order
            rows=self.decode.rows,
        )

    def any_tokens(self) -> Int32Array:
        """Tokens for a decode whose result is not read."""
        token = self.decode.plan.token.copy()
        token[self.node] = 0
        return token

    def fill(self, varying: Sequence[Int32Array]) -> Int32Array:
        """(n_tokens,) the plan's tokens with a query filled in; varying: its tokens in each distinct fragment."""
        token = self.decode.plan.token.copy()
        token[self.node] = (varying[0] if len(varying) == 1 else np.concatenate(varying))[self.source]
        return token


class Templates:
    """The templates of one prompt set, each made when its length is first asked for."""

    def __init__(self, prompts: PromptSet, holders: Sequence[int], capacity: Capacity, n_vocab: int) -> None:
        """holders[i]: the sequence that holds the prefix of prompt i, for as long as these templates are used."""
        self._set = prompts
        self._holders = holders
        self._capacity = capacity
        self._n_vocab = n_vocab
        fragments = list(prompts.fragments)
        self._fragment_of = [fragments.index(prompt.fragment) for prompt in prompts.prompts]
        stable = {prompt.fragment: prompt.stable for prompt in prompts.prompts}
        self._stable = [np.array(stable[fragment], np.int32) for fragment in fragments]
        self._possible = prompts.has_one_text_a_prefix
        fragment_of_root = {
            Root(holder=holder, n_cached=len(prompt.prefix)): prompt.fragment
            for prompt, holder in zip(prompts.prompts, holders, strict=True)
        }
        self.layout = Layout(
            roots=tuple(fragment_of_root),
            fragments=tuple(fragment_of_root.values()),
            fragment_of=tuple(fragments.index(fragment) for fragment in fragment_of_root.values()),
            n_after=tuple(max(0, n) for n in self._lengths(0)),
        )
        self._kept: dict[tuple[int, ...], Template | None] = {}
        self._n_bytes = 0

    def varying(self, fragments: Sequence[Int32Array]) -> list[Int32Array] | None:
        """The tokens of each distinct fragment after its stable ones; None for a query off the fast path."""
        if not self._possible:
            return None
        varying = []
        for tokens, stable in zip(fragments, self._stable, strict=True):
            if tokens[: len(stable)].tobytes() != stable.tobytes():
                return None
            varying.append(tokens[len(stable) :])
        return varying

    def additions(self, fragments: Fragments, continuation: Continuation | None = None) -> list[Addition]:
        """What each prompt adds for a query. Raises PlanError where there is nothing to feed.

        continuation: how the query continues a kept one.
        """
        tokens = [fragments[index].tolist() for index in self._fragment_of]
        added = additions_of(self._set.prompts, self._holders, tokens)
        if continuation is None or continuation.n_kept == 0:
            return added
        roots, n_kept = {root.holder: root for root in continuation.roots}, continuation.n_kept
        return [replace(each, root=roots[each.root.holder], tokens=each.tokens[n_kept:]) for each in added]

    def of_lengths(self, lengths: tuple[int, ...]) -> Template | None:
        """The template for distinct fragments with these numbers of varying tokens; None if such a query takes several
        decodes, or not the fast path.
        """
        try:
            return self._kept[lengths]
        except KeyError:
            made = self._make(lengths)
        n_bytes = _OBJECTS_BYTES + (made.n_bytes if made else 0)
        self._n_bytes += n_bytes  # of two threads that make one at the same time, one may go uncounted
        if self._n_bytes > _MOST_BYTES:
            self._kept.clear()
            self._n_bytes = n_bytes
        self._kept[lengths] = made
        return made

    def of_query(self, n_tokens: int) -> Template | None:
        """The template for a query of n_tokens tokens; None as for `of_lengths`. n_tokens is -1 for a query that merges
        with the text around it, so that the fragment has one token less than without a query.
        """
        lengths = self._lengths(n_tokens)
        return self.of_lengths(lengths) if self._possible and min(lengths) >= 0 else None

    def size_of_query(self, n_tokens: int) -> tuple[int, int] | None:
        """(decodes, tokens fed) of a request with a query of n_tokens tokens; None if it is off the fast path.

        It is planned anew at each call.
        """
        planned = self._plan(self._lengths(n_tokens)) if self._possible else None
        return planned and (len(planned[1]), sum(decode.plan.n_tokens for decode in planned[1]))

    def _lengths(self, n_tokens: int) -> tuple[int, ...]:
        n_empty = self._set.fragments.values()
        return tuple(n + n_tokens - len(stable) for n, stable in zip(n_empty, self._stable, strict=True))

    def _make(self, lengths: tuple[int, ...]) -> Template | None:
        planned = self._plan(lengths)
        if planned is None or len(planned[1]) > 1:
            return None
        additions, decodes = planned
        token = decodes[0].plan.token
        node: IntArray = np.flatnonzero(token >= self._n_vocab)
        return Template(
            decode=decodes[0],
            n_prompts=len(additions),
            n_cached=sum(addition.root.n_cached for addition in additions),
            node=node,
            source=(token[node] - self._n_vocab).astype(np.intp),
        )

    def _plan(self, lengths: tuple[int, ...]) -> tuple[list[Addition], list[DecodePlan]] | None:
        """What the prompts add, and the decodes; None unless every prompt takes its fast path."""
        # A number past the vocabulary marks a token to fill in: n_vocab + i is the i-th varying token.
        start = np.cumsum([self._n_vocab, *lengths]).tolist()
        fragments = [
            [*stable.tolist(), *range(first, first + n)]
            for stable, first, n in zip(self._stable, start, lengths, strict=False)
        ]
        try:
            additions = additions_of(
                self._set.prompts, self._holders, [fragments[index] for index in self._fragment_of]
            )
        except PlanError:  # which the request itself will raise
            return None
        if not all(addition.fast_path for addition in additions):
            return None
        return additions, plan_decodes(additions, self._capacity)
