"""The label trie of a prompt: which extra tokens its labels need, and which hidden states its scores read.

The pointer head of a decision model compares such states, and has a trie of another kind.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from ..config.scoring import EXACT_SCORINGS, FIRST_TOKEN, TREE, Scoring
from ..errors import ConfigError
from ..statistics import Float32Array


class Edge(NamedTuple):
    """One candidate token at a node whose hidden state is read; node 0 is the end of the prompt."""

    node: int
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelTrie:
    """The nodes of the trie that are fed, and the edges that the scores read.

    Reading a node means using its hidden state; its token and those above it must be fed. `tree` reads the nodes with
    several edges, so a path without a choice costs nothing. `first_token` reads only the end of the prompt. The exact
    scorings read every node, which also suffices for the other two. The last token of a label is never fed.
    """

    scoring: Scoring = TREE
    fed: tuple[tuple[int, int], ...] = ()
    """(parent node, token) of fed nodes 1, 2, …; a parent comes before its children"""
    read: tuple[int, ...]
    """the nodes whose hidden state is read, ascending"""
    edges: tuple[Edge, ...]
    """by node, then in order of first use"""
    label_edges: tuple[tuple[int, ...], ...]
    """for every label the edges that its score reads"""
    is_exact: bool = False
    """whether every node is read, as exact scores need it; the edges of a label are then all its tokens"""

    @property
    def n_leaves(self) -> int:
        """The number of sequences that one query needs for this prompt."""
        return max(1, len(self.fed) - len({parent for parent, _ in self.fed if parent > 0}))


def with_end_tokens(labels: Sequence[str], tokens: Sequence[tuple[int, ...]], end: int) -> list[tuple[int, ...]]:
    """The labels' tokens, with the end-of-label token after a label that is a prefix of another.

    Raises ConfigError if two labels have the same tokens, or if such a label needs an end token and end is -1.
    """
    by_tokens: dict[tuple[int, ...], str] = {}
    for label, path in zip(labels, tokens, strict=True):
        if path in by_tokens:
            raise ConfigError(f"labels {by_tokens[path]!r} and {label!r} are the same tokens: keep one of them")
        by_tokens[path] = label
    inner = {path[:n] for path in by_tokens for n in range(1, len(path))}
    for path in inner & by_tokens.keys():
        label, ended = by_tokens[path], (*path, end)
        if end < 0:
            what = f"label {label!r} is the beginning of another label"
            raise ConfigError(f"{what}, and the vocabulary has no end-of-turn token to tell them apart: set label_end")
        if ended in inner or ended in by_tokens:
            other = next(text for tokens, text in by_tokens.items() if tokens[: len(ended)] == ended)
            what = f"label {other!r} continues label {label!r} with the end-of-label token {end}"
            raise ConfigError(f"{what}: set another label_end")
    return [(*path, end) if path in inner else path for path in tokens]


def end_of_prompt(n_labels: int, token: int) -> LabelTrie:
    """The trie of a prompt that a head answers: of it only the hidden state at the prompt's end is read.

    token: any of the vocabulary; every label has its edge, whose log-probability is 0.
    """
    return LabelTrie(read=(0,), edges=(Edge(node=0, token=token),), label_edges=((0,),) * n_labels)


def build_trie(
    labels: Sequence[str],
    tokens: Sequence[tuple[int, ...]],
    end: int,
    scoring: Scoring,
    *,
    exact: bool = False,
    with_root: bool = False,
) -> LabelTrie:
    """The trie of a label set; tokens[i] are the tokens of labels[i], end the end-of-label token or -1.

    exact: read every node, whatever the scoring needs; with_root: read the prompt's end in any case.
    Raises ConfigError for labels that the scoring cannot tell apart.
    """
    by_first: dict[int, str] = {}
    for label, path in zip(labels, tokens, strict=True) if scoring == FIRST_TOKEN else ():
        if (other := by_first.setdefault(path[0], label)) != label:
            what = (
                f"labels {other!r} and {label!r} share their first token {path[0]}, so first_token scoring cannot tell"
            )
            raise ConfigError(f"{what} them apart: use scoring: tree, or other label texts")
    is_exact = exact or scoring in EXACT_SCORINGS
    if scoring == FIRST_TOKEN and not exact:
        paths = [path[:1] for path in tokens]
    else:
        paths = with_end_tokens(labels, tokens, end)
    choices: dict[tuple[int, ...], dict[int, None]] = {}
    for path in paths:
        for n in range(len(path)):
            choices.setdefault(path[:n], {})[path[n]] = None
    read_paths = {path for path, children in choices.items() if is_exact or scoring == FIRST_TOKEN or len(children) > 1}
    if with_root:
        read_paths.add(())
    ways = {path[:n] for path in read_paths for n in range(1, len(path) + 1)}
    node_of: dict[tuple[int, ...], int] = {(): 0}
    fed: list[tuple[int, int]] = []
    for path in choices:  # parents come first
        if path in ways:
            node_of[path] = len(fed) + 1
            fed.append((node_of[path[:-1]], path[-1]))
    edges: list[Edge] = []
    edge_of: dict[tuple[int, ...], int] = {}
    for path in sorted(read_paths, key=node_of.__getitem__):
        for token in choices[path]:
            edge_of[(*path, token)] = len(edges)
            edges.append(Edge(node=node_of[path], token=token))
    return LabelTrie(
        scoring=scoring,
        fed=tuple(fed),
        read=tuple(sorted(node_of[path] for path in read_paths)),
        edges=tuple(edges),
        label_edges=tuple(
            tuple(edge_of[path[: n + 1]] for n in range(len(path)) if path[:n] in read_paths) for path in paths
        ),
        is_exact=is_exact,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pointer:
    """A pointer head, which answers a prompt whose labels are options in its text: option i has the score q · k_i / √n.

    q = query @ z + query_bias, where z (n_embd,) is the final-norm hidden state of the prompt's last token;
    k_i = z_i @ key + key_bias, where z_i is that of the token that ends option i.
    """

    reads_labels: ClassVar[bool] = False
    """It needs no scores of the labels' texts."""
    text: ClassVar[None] = None
    digest: ClassVar[str] = "pointer"
    """A model has one."""

    depth: int
    """all layers"""
    end: int
    """the token that ends an option"""
    query: Float32Array
    """(n, n_embd)"""
    query_bias: Float32Array
    """(n,)"""
    key: Float32Array
    """(n_embd, n)"""
    key_bias: Float32Array
    """(n,)"""

    def trie(self, closing: Sequence[int], n_labels: int) -> tuple[list[int], LabelTrie]:
        """(the prompt's last tokens up to the first option's end, the trie that feeds the others and reads the ends).

        closing: the tokens after the fragment with the query, which show the options. Its edges are the options, then
        the prompt's end. Raises ConfigError where there are other options.
        """
        ends = [index for index, token in enumerate(closing) if token == self.end]
        if len(ends) != n_labels or closing[-1] == self.end:
            raise ConfigError(f"the model's template shows {len(ends)} of {n_labels} options after the text")
        first = ends[0]
        read = tuple(index - first for index in (*ends, len(closing) - 1))
        trie = LabelTrie(
            fed=tuple(enumerate(closing[first + 1 :])),
            read=read,
            edges=tuple(Edge(node=node, token=self.end) for node in read),
            label_edges=tuple((label,) for label in range(n_labels)),
        )
        return list(closing[: first + 1]), trie
