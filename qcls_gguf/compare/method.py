"""The interface of methods of labelling: their input, their answers, and how labels are read from logits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ..classifier import Classifier
from ..config.scoring import TREE
from ..engine.cores import threads
from ..errors import QclsError
from ..model import Model
from ..prompts.compiled import Prompt
from ..prompts.trie import build_trie
from ..statistics import AnyFloats, log_softmax, log_sum_exp


class PeerError(QclsError):
    """A method cannot run here, or failed while it ran; the message says why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A method's answer for one prompt; the labels are in the order of the configuration."""

    label: str | None
    """the winner; None where the method cannot tell"""
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

    def answer_of_rows(self, rows: Iterable[AnyFloats], *, exact: bool) -> Answer:
        """The answer by the logits at each read node, (n_vocab,) each; exact: with `joint`."""
        among, whole = np.zeros((2, len(self.trie.edges)))
        for row, edges, tokens in zip(rows, self._edges, self.edge_tokens, strict=True):
            logits = np.asarray(row[tokens], np.float64)
            among[edges] = log_softmax(logits)
            if exact:
                whole[edges] = logits - log_sum_exp(np.asarray(row, np.float64))
        tree = [among[list(edges)].sum() for edges in self.trie.label_edges]
        joint = tuple(
            float(whole[list(edges)].sum()) if len(edges) == len(path) else None
            for edges, path in zip(self.trie.label_edges, self.paths, strict=True)
        )
        return Answer(label=self.labels[int(np.argmax(tree))], joint=joint if exact else ())

    def answer_of_first_tokens(self, log_probs: Mapping[int, float]) -> Answer:
        """The answer by the log-probabilities of some tokens after the prompt, by token.

        It has no winner where no label's first token is among them, or where several labels share the best one.
        """
        seen = [log_probs.get(path[0]) for path in self.paths]
        joint = tuple(p if len(path) == 1 else None for p, path in zip(seen, self.paths, strict=True))
        values = [p for p in seen if p is not None]
        best = [label for label, p in zip(self.labels, seen, strict=True) if p is not None and p == max(values)]
        return Answer(label=best[0] if len(best) == 1 else None, joint=joint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """Where the servers are that are compared."""

    llama_server: str | None = None
    """URL of a running llama-server"""
    ollama: str | None = None
    """URL of a running Ollama"""
    ollama_model: str | None = None
    """its name for the model, made from the same file"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What every method is given: the prompts, the queries, the models and the servers."""

    ours: Classifier
    stock_model: Model
    """what stock llama.cpp decodes on: ours, or another copy"""
    prompts: tuple[WorkloadPrompt, ...]
    queries: tuple[str, ...]
    peers: Peers

    def inputs(self, query: str) -> list[tuple[int, list[int]]]:
        """For each prompt how many tokens of its prefix stay with a query, and the tokens after them."""
        prompts = [prompt.compiled for prompt in self.prompts]
        return [prompt.new_tokens(prompt.fragment_tokens(self.stock_model, query)) for prompt in prompts]

    @property
    def n_threads(self) -> int:
        """CPU threads of a decode."""
        return threads(self.ours.config.runtime).n

    @property
    def n_longest(self) -> int:
        """Tokens of the longest rendered prompt with its longest label."""
        longest = [max(map(len, prompt.paths)) for prompt in self.prompts]
        return max(
            n_cached + len(tokens) + n
            for query in self.queries
            for n, (n_cached, tokens) in zip(longest, self.inputs(query), strict=True)
        )


class Method:
    """A method of labelling a query by all prompts: opened by its constructor, asked, and closed.

    The constructor takes the workload, and loads and caches what requests will need; only `ask` is timed. It raises
    PeerError where the method cannot run here, and leaves nothing open then.
    """

    def ask(self, query: str, exact: bool = False) -> list[Answer]:
        """An answer for each prompt: the winner, and with `exact` every log-probability that the method can give."""
        raise NotImplementedError

    def remarks(self) -> list[str]:
        """What a reader of its figures should know, found while it ran."""
        return []

    def close(self) -> None:
        """Free everything; may be called again."""
