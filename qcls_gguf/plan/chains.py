"""A token tree as its chains: runs of nodes up to where the tree branches, which belong to one set of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Chains:
    """The chains of a tree, each behind the one that it grows from. One without children ends in a leaf."""

    length: list[int]
    """(n_chains,) nodes of each"""
    children: list[list[int]]
    """(n_chains,) what grows from its end: none, or more than one"""
    roots: list[int]
    """those that grow from a cached prefix"""

    @property
    def n_tokens(self) -> int:
        """Nodes of the tree."""
        return sum(self.length)


def chains_of(parent: Sequence[int]) -> tuple[Chains, list[int]]:
    """The chains of a tree, and (n_nodes,) the chain of each node.

    parent: (n_nodes,) the node that each grows from, which comes before it; negative for a cached prefix, which is no
    node.
    """
    n_children = [0] * len(parent)
    for above in parent:
        if above >= 0:
            n_children[above] += 1
    found = Chains(length=[], children=[], roots=[])
    chain_of: list[int] = []
    for above in parent:
        if above >= 0 and n_children[above] == 1:
            chain = chain_of[above]
            found.length[chain] += 1
        else:
            chain = add_chain(found, 1, None if above < 0 else chain_of[above])
        chain_of.append(chain)
    return found, chain_of


def add_chain(chains: Chains, length: int, above: int | None) -> int:
    """Add a chain below another one, or below a cached prefix, and return it."""
    chain = len(chains.length)
    chains.length.append(length)
    chains.children.append([])
    (chains.roots if above is None else chains.children[above]).append(chain)
    return chain
