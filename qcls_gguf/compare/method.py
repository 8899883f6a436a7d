"""What every method of labelling is given, what it answers, and how labels are read from logits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns

import numpy as np

from ..classifier import Classifier
from ..config.schema import RuntimeConfig
from ..config.scoring import TREE
from ..errors import QclsError
from ..model import Model
from ..model.placement import flash_attention
from ..prompts.compiled import Prompt
from ..prompts.trie import build_trie
from ..score.adjustment import FloatArray, log_softmax, log_sum_exp
from ..score.result import ModelInfo


class AbsentError(QclsError):
    """A method cannot run here; the message says why, and what to do."""


class PeerError(QclsError):
    """A method failed while it ran."""


class DiedError(PeerError):
    """The process of a method ended by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A method's answer for one prompt; the labels are in the order of the configuration."""

    label: str | None
    """the winner; None where the method cannot tell"""
    tree: tuple[float, ...] | None = None
    """log-probabilities among the labels, as `tree` scores them; None where the method does not see every choice"""
    joint: tuple[float | None, ...] = ()
    """log p(label | prompt) over the whole vocabulary; None for a label if the method does not read all its tokens"""


class WorkloadPrompt:
    """A prompt, and how its labels are read from logits at the nodes of its label trie that offer a choice.

    That is one node where all first tokens differ, as `tree` scores them.
    """

    def __init__(self, compiled: Prompt, template: str) -> None:
        """compiled: for a scoring that reads all tokens of the labels, or audited; template: its whole text."""
        self.compiled, self.template, self.labels = compiled, template, compiled.labels
        read = compiled.trie.edges
        self.paths = [tuple(read[i].token for i in edges) for edges in compiled.trie.label_edges]
        """for each label its tokens, with the end-of-label token where it has one"""
        self.trie = build_trie(self.labels, self.paths, -1, TREE)
        edges = self.trie.edges
        self._edges = [[i for i, edge in enumerate(edges) if edge.node == node] for node in self.trie.read]
        self.edge_tokens = [np.array([edges[i].token for i in indices], np.intp) for indices in self._edges]
        """for each read node the tokens of its edges"""
        self.distinct = len({path[0] for path in self.paths}) == len(self.paths)
        """whether first tokens alone tell the labels apart"""

    def node_path(self, node: int) -> tuple[int, ...]:
        """The tokens between the end of the prompt and a node."""
        if not node:
            return ()
        parent, token = self.trie.fed[node - 1]
        return (*self.node_path(parent), token)

    def answer(self, edge_logits: Sequence[FloatArray], log_sums: Sequence[float] = ()) -> Answer:
        """The answer by the logits of edge_tokens at each read node.

        log_sums[i]: the log-sum-exp of node i's logits over the whole vocabulary, for `joint`; none: without it.
        """
        among, whole = np.zeros((2, len(self.trie.edges)))
        for i, edges in enumerate(self._edges):
            logits = np.asarray(edge_logits[i], np.float64)
            among[edges] = log_softmax(logits)
            whole[edges] = logits - (log_sums[i] if log_sums else 0)
        tree = tuple(float(among[list(edges)].sum()) for edges in self.trie.label_edges)
        joint = tuple(
            float(whole[list(edges)].sum()) if len(edges) == len(path) else None
            for edges, path in zip(self.trie.label_edges, self.paths, strict=True)
        )
        return Answer(label=self.labels[int(np.argmax(tree))], tree=tree, joint=joint if log_sums else ())

    def answer_of_rows(self, rows: Iterable[FloatArray], *, exact: bool) -> Answer:
        """The answer by the logits of the whole vocabulary at each read node; a row is read before the next is asked
        for.
        """
        edges, log_sums = [], []
        for row, tokens in zip(rows, self.edge_tokens, strict=True):
            edges.append(row[tokens])
            log_sums += [float(log_sum_exp(np.asarray(row, np.float64)))] if exact else []
        return self.answer(edges, log_sums)

    def answer_of_first_tokens(self, log_probs: Mapping[int, float]) -> Answer:
        """The answer by the log-probabilities of some tokens after the prompt, by token.

        It has no winner where no label's first token is among them, or where several labels share the best one.
        """
        seen = [log_probs.get(path[0]) for path in self.paths]
        joint = tuple(p if len(path) == 1 else None for p, path in zip(seen, self.paths, strict=True))
        values = [p for p in seen if p is not None]
        best = [label for label, p in zip(self.labels, seen, strict=True) if p is not None and p == max(values)]
        whole = self.distinct and len(values) == len(seen)
        tree = tuple(log_softmax(np.array(values)).tolist()) if whole else None
        return Answer(label=best[0] if len(best) == 1 else None, tree=tree, joint=joint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What every method is given: the prompts, the queries, the model and the settings."""

    classifier: Classifier | None
    """ours; None in another process"""
    stock_model: Model | None
    """what the methods on this package's library decode on: ours, or another copy; None in another process"""
    prompts: tuple[WorkloadPrompt, ...]
    inputs: Mapping[str, Sequence[tuple[int, list[int]]]]
    """for each query, for each prompt: how many tokens of the prompt's prefix stay, and the tokens after them"""
    model: ModelInfo
    runtime: RuntimeConfig
    n_threads: int

    @property
    def ours(self) -> Classifier:
        """Our classifier. Only in its own process."""
        assert self.classifier is not None
        return self.classifier

    @property
    def n_longest(self) -> int:
        """Tokens of the longest rendered prompt with its longest label."""
        longest = [max(map(len, prompt.paths)) for prompt in self.prompts]
        return max(
            n_cached + len(tokens) + n
            for of_query in self.inputs.values()
            for n, (n_cached, tokens) in zip(longest, of_query, strict=True)
        )

    @property
    def flash_attn(self) -> bool | None:
        """Whether our own context computes flash attention; None leaves it to llama.cpp."""
        return flash_attention(self.runtime, self.model.n_gpu_layers)


class Method:
    """A method of labelling a query by all prompts: opened by its constructor, asked, and closed.

    The constructor takes the workload and the Peers, and loads and caches what requests will need; only `ask` is timed.
    It raises AbsentError where the method cannot run here, and leaves nothing open then.
    """

    def ask(self, query: str, exact: bool = False) -> list[Answer]:
        """An answer for each prompt: the winner, and with `exact` every log-probability that the method can give."""
        raise NotImplementedError

    def timed(self, query: str) -> float:
        """Milliseconds that `ask` takes."""
        before = perf_counter_ns()
        self.ask(query)
        return (perf_counter_ns() - before) / 1e6

    def remarks(self) -> list[str]:
        """What a reader of its figures should know, found while it ran."""
        return []

    def close(self) -> None:
        """Free everything; may be called again."""
