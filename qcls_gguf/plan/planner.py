"""The one way from the tokens of queries to the decodes that answer them.

Where every prompt takes its fast path, the token tree of one query depends on the lengths of its fragments alone, not
on their tokens, as long as prompts that grow from one cached prefix have one fragment text: their tokens are the same,
and what follows is fixed. So a decode is made once for a length, as a template, and a request only fills in its
tokens; the templates of several queries that share no token are put side by side. Other requests are planned by growing
their token tree.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from ..errors import PlanError
from ..prompts.prompt_set import PromptSet
from ..statistics import Int32Array, IntArray
from .decodes import Addition, Capacity, DecodeInput, addition_of, plan_decodes, side_by_side

Fragments: TypeAlias = Sequence[Int32Array]
"""the tokens of the distinct fragments of a prompt set with the query in them, in the order of `PromptSet.fragments`"""

_MOST_BYTES = 32 << 20
"""Most bytes of all templates: those of queries of up to 256 tokens take 10.5 MiB for the 8 prompts of fashion-8."""
_OBJECTS_BYTES, _TOKEN_BYTES = 2048, 40
"""about what the objects around the arrays of a template take, and a token in them"""


class Template(NamedTuple):
    """A decode of one query, with 0 in place of the query's tokens."""

    decode: DecodeInput
    node: IntArray
    """(n_filled,) the nodes that are filled in"""
    source: IntArray
    """(n_filled,) the token that fills a node: its place among the varying tokens of all fragments, joined"""


class Templates:
    """The templates of one prompt set, made when a length is first asked for. Any thread may use them."""

    def __init__(self, prompts: PromptSet, holders: Sequence[int], capacity: Capacity, n_vocab: int) -> None:
        """holders[i]: the sequence that holds the prefix of prompt i, for as long as these templates are used."""
        self.capacity = capacity
        self._set = prompts
        self._holders = holders
        self._n_vocab = n_vocab
        fragments = list(prompts.fragments)
        self._fragment_of = [fragments.index(prompt.fragment) for prompt in prompts.fed]
        stable = {prompt.fragment: prompt.stable for prompt in prompts.fed}
        self._stable = [np.array(stable[fragment], np.int32) for fragment in fragments]
        both = {(prompt.prefix, prompt.fragment) for prompt in prompts.fed}
        self._possible = len(both) == len(set(prompts.prefixes))
        """Whether prompts with the same cached prefix have the same text around the query, too."""
        self._roots = dict(zip(holders, self._fragment_of, strict=True))  # the fragment after a prefix
        self._made: dict[tuple[int, ...], Template | None] = {}
        self._n_bytes = 0

    def filled(self, fragments: Fragments) -> DecodeInput | None:
        """The decode of a query by a template; None if it takes several decodes, or not the fast path."""
        if not self._possible:
            return None
        varying, lengths = [], []
        for tokens, stable in zip(fragments, self._stable, strict=True):
            n = len(stable)
            if tokens[:n].tobytes() != stable.tobytes():
                return None
            varying.append(tokens[n:])
            lengths.append(len(tokens) - n)
        key = tuple(lengths)
        template = self._made[key] if key in self._made else self.of_lengths(key)
        if template is None:
            return None
        token = template.decode.token.copy()
        token[template.node] = (varying[0] if len(varying) == 1 else np.concatenate(varying))[template.source]
        return template.decode._replace(token=token)

    def additions(self, fragments: Fragments) -> list[Addition]:
        """What the prompts add for a query. Raises PlanError where there is nothing to feed."""
        tokens = [tokens.tolist() for tokens in fragments]
        return list(map(addition_of, self._set.fed, self._holders, [tokens[n] for n in self._fragment_of]))

    def beginnings(self, fragments: Fragments) -> list[tuple[int, int]]:
        """For the cached prefixes (sequence, first token that a query adds to it), -1 where it adds none."""
        first = [
            int(tokens[len(stable)]) if len(tokens) > len(stable) else -1
            for tokens, stable in zip(fragments, self._stable, strict=True)
        ]
        return [(holder, first[fragment]) for holder, fragment in self._roots.items()]

    def of_lengths(self, lengths: tuple[int, ...]) -> Template | None:
        """The template for distinct fragments with these numbers of varying tokens; None if such a query takes several
        decodes, or not the fast path.
        """
        if lengths in self._made:
            return self._made[lengths]
        made = None
        if (decodes := self._plan(lengths)) is not None and len(decodes) == 1:
            token = decodes[0].token
            node: IntArray = np.flatnonzero(token >= self._n_vocab)
            made = Template(decodes[0], node, (token[node] - self._n_vocab).astype(np.intp))
            token[node] = 0
        n_bytes = _OBJECTS_BYTES + (_TOKEN_BYTES * made.decode.n_tokens if made else 0)
        self._n_bytes += n_bytes  # of two threads that make one at the same time, one may go uncounted
        if self._n_bytes > _MOST_BYTES:
            self._made.clear()
            self._n_bytes = n_bytes
        self._made[lengths] = made
        return made

    def of_query(self, n_tokens: int) -> Template | None:
        """The template for a query of n_tokens tokens; None as for `of_lengths`. n_tokens is -1 for a query that merges
        with the text around it, so that the fragment has one token less than without a query.
        """
        lengths = self._lengths(n_tokens)
        return self.of_lengths(lengths) if self._possible and min(lengths) >= 0 else None

    def size_of_query(self, n_tokens: int) -> tuple[int, int] | None:
        """(decodes, tokens fed) of a request with a query of n_tokens tokens; None if it is off the fast path.

        It is planned anew at every call.
        """
        if not self._possible or (decodes := self._plan(self._lengths(n_tokens))) is None:
            return None
        return len(decodes), sum(decode.n_tokens for decode in decodes)

    def _lengths(self, n_tokens: int) -> tuple[int, ...]:
        n_empty = self._set.fragments.values()
        return tuple(n + n_tokens - len(stable) for n, stable in zip(n_empty, self._stable, strict=True))

    def _plan(self, lengths: tuple[int, ...]) -> tuple[DecodeInput, ...] | None:
        """The decodes of a query; None unless every prompt takes its fast path."""
        # A number past the vocabulary marks a token to fill in: n_vocab + i is the i-th varying token.
        start = np.cumsum([self._n_vocab, *lengths])
        fragments = [
            np.concatenate([stable, np.arange(first, first + n, dtype=np.int32)])
            for stable, first, n in zip(self._stable, start, lengths, strict=False)
        ]
        try:
            additions = self.additions(fragments)
        except PlanError:  # which the request itself will raise
            return None
        if not all(addition.fast_path for addition in additions):
            return None
        return plan_decodes(additions, self.capacity)


def plan_request(asked: Sequence[tuple[Templates, Fragments]]) -> tuple[DecodeInput, ...]:
    """The decodes for some queries, given by their prompt sets' templates and their tokens.

    Raises PlanError if there is nothing to feed.
    """
    made: list[DecodeInput] = []
    for templates, fragments in asked:
        if (decode := templates.filled(fragments)) is None:
            break
        made.append(decode)
    else:
        if len(made) == 1:
            return (made[0],)
        if (together := _side_by_side(asked, made)) is not None:
            return (together,)
    additions = [addition for templates, fragments in asked for addition in templates.additions(fragments)]
    return plan_decodes(additions, asked[0][0].capacity)


def _side_by_side(asked: Sequence[tuple[Templates, Fragments]], made: Sequence[DecodeInput]) -> DecodeInput | None:
    """One decode of all these; None where two share a token, or it would be too large.

    Two that grow from the same cells share none if their next tokens differ, and are those of their queries.
    """
    begins = [begin for templates, fragments in asked for begin in templates.beginnings(fragments)]
    n_leaves, n_tokens, n_rows = zip(*[(len(one.roots), one.n_tokens, one.n_rows) for one in made], strict=True)
    is_apart = len(set(begins)) == len(begins) and all(token >= 0 for _, token in begins)
    holds = asked[0][0].capacity.holds(sum(n_leaves), sum(n_tokens), sum(n_rows))
    return side_by_side(made) if is_apart and holds else None
