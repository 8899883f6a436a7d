"""Token trees whose trunks are fed once for each branch, so that a model with states takes fewer passes.

A recurrent layer computes a trunk in one pass and its branches in the next. Fed once for each branch, in the branch's
own sequence, trunk and branch take one pass together: more tokens for fewer passes, which pays where the trunk is short
or a pass is dear. Leaves, and with them sequences, stay as many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from .chains import Chains, add_chain, chains_of


class Branches:
    """Where a tree of nodes branches: at the ends of its chains. The level of a chain is the number of those above."""

    def __init__(self, parent: Sequence[int]) -> None:
        """parent: (n_nodes,) as `chains_of` takes them."""
        self._parent = parent
        self.chains, self._chain_of = chains_of(parent)
        self._above: list[int | None] = [None] * len(self.chains.length)
        self._level = [0] * len(self.chains.length)
        for chain, children in enumerate(self.chains.children):
            for child in children:
                self._above[child], self._level[child] = chain, self._level[chain] + 1
        self._n_levels = max(self._level, default=0)

    def ranges(self) -> Iterator[range]:
        """The levels that may be unshared together."""
        for start in range(self._n_levels):
            for stop in range(start + 1, self._n_levels + 1):
                yield range(start, stop)

    def n_copies(self, levels: range) -> list[int]:
        """(n_chains,) how often each chain is fed where the chains of these levels share nothing."""
        copies = [1] * len(self._level)
        for chain in range(len(copies) - 1, -1, -1):
            children = self.chains.children[chain]
            if children and self._level[chain] in levels:
                copies[chain] = sum(copies[child] for child in children)
        return copies

    def n_tokens(self, copies: Sequence[int]) -> int:
        """Nodes of the tree that `n_copies` stands for."""
        return sum(n * length for n, length in zip(copies, self.chains.length, strict=True))

    def unshared(self, copies: Sequence[int]) -> Chains:
        """The chains of the tree that `n_copies` stands for: a copy and the one branch behind it are one chain."""
        found = Chains(length=[], children=[], roots=[])
        of: list[list[int]] = [[] for _ in copies]  # the copies of a chain, the next one to have a branch last
        for chain, (above, length) in enumerate(zip(self._above, self.chains.length, strict=True)):
            if above is not None and copies[above] > 1:
                mine = [of[above].pop() for _ in range(copies[chain])]
                for copy in mine:
                    found.length[copy] += length
            else:
                grows_from = None if above is None else of[above][0]
                mine = [add_chain(found, length, grows_from) for _ in range(copies[chain])]
            of[chain] = mine
        return found

    def copied(self, copies: Sequence[int]) -> tuple[list[int], list[int]]:
        """The tree that `n_copies` stands for: (the node that each of its nodes is a copy of, its nodes' parents).

        Copies of a node stand together, in the order of the nodes.
        """
        of_node = [copies[chain] for chain in self._chain_of]
        first = [0, *accumulate(of_node)]
        origin = [node for node, n in enumerate(of_node) for _ in range(n)]
        parents: list[int] = []
        n_taken = [0] * len(of_node)  # copies of a node that have a child
        for node, above in enumerate(self._parent):
            for _ in range(of_node[node]):
                if above < 0:
                    parents.append(above)
                elif of_node[above] == 1:
                    parents.append(first[above])
                else:
                    parents.append(first[above] + n_taken[above])
                    n_taken[above] += 1
        return origin, parents
