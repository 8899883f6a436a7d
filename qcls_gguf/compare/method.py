"""Methods of labelling: their input and answers; the methods on this package's library.

A method is a context manager of a workload: it loads and caches what requests will need, gives a `Method` that is
asked, and frees everything in the end. It raises PeerError where it cannot run here.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

import numpy as np
from pydantic import Field

from ..classifier import Classifier
from ..config.schema import MAX_SEQ, Config
from ..config.scoring import TREE
from ..engine.capacity import n_whole_tokens, whole_cells
from ..engine.engine import Engine
from ..engine.resources import threads
from ..errors import QclsError
from ..model import Model
from ..model.placement import flash_attention
from ..native import NativeContext
from ..opening import QUERIES
from ..plan.decodes import Root, TokenTree
from ..prompts.compiled import Prompt
from ..prompts.trie import build_trie
from ..report.record import Record
from ..statistics import AnyFloats, log_softmax


class PeerError(QclsError):
    """A method cannot run here, or failed while it ran; the message says why, and what to do."""


class Rounds(Record):
    """What is asked, and how often."""

    queries: tuple[str, ...] = Field(default=QUERIES, description="the texts that were labelled")
    rounds: int = Field(default=10, description="timed rounds; a round is one request of every query by every method")
    warm_up: int = Field(default=2, description="rounds before them that were not timed")


class ComparisonSettings(Rounds):
    """What is compared, and how."""

    config: Config
    methods: tuple[str, ...] = ()
    """their names; ours is always among them. Empty: all"""
    llama_server: str | None = None
    """URL of a running llama-server"""
    ollama: str | None = None
    """URL of a running Ollama"""
    ollama_model: str | None = None
    """its name for the model, made from the same file"""


@dataclass(frozen=True, slots=True)
class Method:
    """A method that is open."""

    ask: Callable[[str], list[str | None]]
    """the label for each prompt of a query; None where the method cannot tell"""
    remarks: Callable[[], list[str]] = list
    """what a reader of its figures should know, found while it ran"""


class WorkloadPrompt:
    """A prompt, and how its labels are read from logits at the nodes of its label trie that offer a choice.

    That is one node where all first tokens differ, as `tree` scores them.
    """

    def __init__(self, compiled: Prompt) -> None:
        """compiled: with all tokens of the labels, as exact scores need them."""
        self.compiled, self.labels = compiled, compiled.labels
        self.template = compiled.settings.expanded_template
        """the whole text"""
        read = compiled.trie.edges
        self.paths = [tuple(read[i].token for i in edges) for edges in compiled.trie.label_edges]
        """the tokens of the labels, with the end-of-label token where one has it"""
        self.trie = build_trie(self.labels, self.paths, -1, TREE)
        edges = self.trie.edges
        self._edges = [[i for i, edge in enumerate(edges) if edge.node == node] for node in self.trie.read]
        self.edge_tokens = [np.array([edges[i].token for i in indices], np.intp) for indices in self._edges]
        """the tokens of its edges, by read node"""
        self.distinct = len({path[0] for path in self.paths}) == len(self.paths)
        """whether first tokens alone tell the labels apart"""

    def label_of_rows(self, rows: Iterable[AnyFloats]) -> str:
        """The label by the logits at the read nodes, (n_vocab,) at one."""
        among = np.zeros(len(self.trie.edges))
        for row, edges, tokens in zip(rows, self._edges, self.edge_tokens, strict=True):
            among[edges] = log_softmax(np.asarray(row[tokens], np.float64))
        return self.labels[int(np.argmax([among[list(edges)].sum() for edges in self.trie.label_edges]))]

    def label_of_first_tokens(self, log_probs: Mapping[int, float]) -> str | None:
        """The label by the log-probabilities of some tokens after the prompt, by token; None where no label's first
        token is among them, or where several labels share the best one.
        """
        seen = [log_probs.get(path[0], -math.inf) for path in self.paths]
        best = [label for label, p in zip(self.labels, seen, strict=True) if p == max(seen)]
        return best[0] if len(best) == 1 and max(seen) > -math.inf else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What every method is given: the settings with rendered prompts, and the models."""

    settings: ComparisonSettings
    ours: Classifier
    stock_model: Model
    """what stock llama.cpp decodes on: ours, or another copy"""
    prompts: tuple[WorkloadPrompt, ...]

    def inputs(self, query: str) -> list[tuple[int, list[int]]]:
        """By prompt how many tokens of its prefix stay with a query, and the tokens after them."""
        prompts = [prompt.compiled for prompt in self.prompts]
        return [prompt.new_tokens(prompt.fragment_tokens(self.stock_model, query)) for prompt in prompts]

    @property
    def n_threads(self) -> int:
        """CPU threads of a decode."""
        return threads(self.ours.config.runtime)[0]

    @property
    def n_ctx(self) -> int:
        """Cells that a server needs for the longest rendered prompt with the longest query."""
        return max(256, *n_whole_tokens(self.ours.compiled, self.ours.config.runtime.max_query_tokens, 0))


@contextmanager
def qcls(workload: Workload) -> Iterator[Method]:
    """Our own classifier in the configuration's scoring."""
    classifier = workload.ours

    def ask(query: str) -> list[str | None]:
        return [answer.most_probable for answer in classifier.classify(query).results]

    def remarks() -> list[str]:
        heads = [
            f"{prompt.name} after {prompt.head.depth} of {classifier.engine.model.facts.n_layer} layers"
            for prompt in classifier.compiled.prompts
            if prompt.head
        ]
        return [f"heads answer {', '.join(heads)}; the other methods read the labels' texts"] if heads else []

    yield Method(ask, remarks)


@contextmanager
def stock(workload: Workload, *, cached: bool = False, together: bool = False) -> Iterator[Method]:
    """Stock llama.cpp with all logits.

    cached: whether every prompt's prefix stays in the cache; together: whether all prompts share a decode.
    """
    prompts, model, runtime = workload.prompts, workload.stock_model, workload.ours.config.runtime

    def inputs(query: str) -> list[tuple[int, list[int]]]:
        """By prompt how many tokens of its prefix are cached, and the tokens that are fed."""
        rests = workload.inputs(query)
        if cached:
            return rests
        return [(0, [*prompt.compiled.prefix[:n], *tokens]) for prompt, (n, tokens) in zip(prompts, rests, strict=True)]

    decodes = [range(len(prompts))] if together else [range(i, i + 1) for i in range(len(prompts))]
    prefixes = [prompt.compiled.prefix for prompt in prompts if cached and prompt.compiled.prefix]
    n_leaves = max(sum(prompts[i].trie.n_leaves for i in decode) for decode in decodes)
    n_seq = n_leaves + len(prefixes)
    if n_seq > MAX_SEQ:
        raise PeerError(f"it needs {n_seq} sequences, and llama.cpp has {MAX_SEQ}: compare with fewer prompts")
    n_rows = max(sum(len(prompts[i].trie.read) for i in decode) for decode in decodes)
    n_tokens = max(
        sum(len(fed[i][1]) + len(prompts[i].trie.fed) for i in decode)
        for fed in map(inputs, workload.settings.queries)
        for decode in decodes
    )
    # our limits hold for the other methods as well
    n_batch = max(workload.ours.engine.context.n_batch, n_tokens, n_rows, n_seq)
    context = NativeContext(
        model.native,
        n_ctx=whole_cells(sum(map(len, prefixes)) + n_batch),
        n_batch=n_batch,
        n_seq_max=n_seq,
        n_outputs_max=max(n_rows, n_seq),
        n_threads=workload.n_threads,
        hidden_only=False,
        flash_attn=flash_attention(runtime, model.n_gpu_layers),
        visible_cells=False,
        kv_type=runtime.kv_type,
    )
    with closing(Engine(model, context, n_leaf_seqs=n_leaves)) as engine:
        holders = {prefix.tokens: prefix.holder for prefix in engine.hold(prefixes)}

        def decoded(indices: Sequence[int], fed: Sequence[tuple[int, list[int]]]) -> Iterator[str]:
            """The labels for some prompts, which share no tokens, by one decode."""
            tree = TokenTree()
            read = []
            for index in indices:
                prompt, (n_cached, tokens) = prompts[index], fed[index]
                root = Root(holders[prompt.compiled.prefix] if n_cached else -1, n_cached)
                nodes = [tree.add_path(tree.add_root(root), tokens)]
                for parent, token in prompt.trie.fed:
                    nodes.append(tree.add_path(nodes[parent], (token,)))
                read.append([nodes[node] for node in prompt.trie.read])
                for node in read[-1]:
                    tree.read(node)
            planned = tree.finish(edges=[node for nodes in read for node in nodes])
            hidden, rows = engine.decode(planned)[0], iter(planned.rows)
            for index, nodes in zip(indices, read, strict=True):
                yield prompts[index].label_of_rows([hidden[next(rows)] for _ in nodes])

        def ask(query: str) -> list[str | None]:
            fed = inputs(query)
            return [label for decode in decodes for label in decoded(decode, fed)]

        yield Method(ask)
