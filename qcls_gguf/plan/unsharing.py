"""Token trees whose trunks are fed once for each branch, so that a model with states takes fewer passes.

A recurrent layer computes a trunk in one pass and its branches in the next. Fed once for each branch, in the branch's
own sequence, trunk and branch take one pass together: more tokens for fewer passes, which pays where the trunk is short
or a pass is dear. Leaves, and with them sequences, stay as many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate


class Branches:
    """Where a tree of nodes branches. The nodes' parents come before them; a negative one is a root, which is no node.

    The level of a branching node is the number of such nodes above it.
    """

    def __init__(self, parent: Sequence[int]) -> None:
        """parent: (n_nodes,) of each node."""
        self._parent = parent
        self._children: list[list[int]] = [[] for _ in parent]
        for node, above in enumerate(parent):
            if above >= 0:
                self._children[above].append(node)
        self._level: list[int] = []
        for above in parent:
            self._level.append(0 if above < 0 else self._level[above] + (len(self._children[above]) > 1))
        inner = [level for level, children in zip(self._level, self._children, strict=True) if len(children) > 1]
        self._n_levels = max(inner, default=-1) + 1

    def ranges(self) -> Iterator[range]:
        """The levels that may be unshared together."""
        for start in range(self._n_levels):
            for stop in range(start + 1, self._n_levels + 1):
                yield range(start, stop)

    def n_copies(self, levels: range) -> list[int]:
        """(n_nodes,) how often each node is fed where the branching nodes of these levels share nothing."""
        copies = [1] * len(self._parent)
        for node in range(len(self._parent) - 1, -1, -1):
            children = self._children[node]
            if len(children) == 1 or (children and self._level[node] in levels):
                copies[node] = sum(copies[child] for child in children)
        return copies

    def copied(self, copies: Sequence[int]) -> tuple[list[int], list[int]]:
        """The tree that `n_copies` stands for: (the node that each of its nodes is a copy of, its nodes' parents).

        Copies of a node stand together, in the order of the nodes.
        """
        first = [0, *accumulate(copies)]
        origin = [node for node, n in enumerate(copies) for _ in range(n)]
        parents: list[int] = []
        n_taken = [0] * len(copies)  # copies of a node that have a child
        for node, above in enumerate(self._parent):
            for _ in range(copies[node]):
                if above < 0:
                    parents.append(above)
                elif copies[above] == 1:
                    parents.append(first[above])
                else:
                    parents.append(first[above] + n_taken[above])
                    n_taken[above] += 1
        return origin, parents
