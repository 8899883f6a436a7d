"""Three methods on stock llama.cpp and the same loaded model: a context with logits over the whole vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ..engine.capacity import whole_cells
from ..engine.engine import MAX_SEQ
from ..native import NativeContext
from ..plan.tree import TokenTree
from .method import AbsentError, Answer, Method
from .reader import LabelReader, log_normaliser

Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptInput:
    """What a decode gets for one prompt of one query."""

    reader: LabelReader
    seqs: tuple[int, ...]
    """a sequence for each leaf of the label trie"""
    n_cached: int
    """tokens that these sequences hold already"""
    tokens: list[int]
    """tokens behind those, up to the end of the prompt"""


class StockMethod(Method):
    """A context with logits. The three methods differ in what is cached and in how many prompts share a decode."""

    cached: ClassVar[bool]
    """whether every prompt's prefix stays in the cache, in sequences of its own"""

    def start(self) -> None:
        readers = [prompt.reader for prompt in self.workload.prompts]
        n_leaves = [reader.trie.n_leaves for reader in readers]
        if self.cached:
            first = np.cumsum([0, *(1 + n for n in n_leaves)]).tolist()
            self._holders: list[int] = first[:-1]
            self._seqs = [tuple(range(start + 1, start + 1 + n)) for start, n in zip(first, n_leaves, strict=False)]
            n_seq = first[-1]
        else:
            self._seqs = [tuple(range(n)) for n in n_leaves]
            n_seq = max(n_leaves)
        if n_seq > MAX_SEQ:
            raise AbsentError(f"it needs {n_seq} sequences, and llama.cpp has {MAX_SEQ}: compare with fewer prompts")
        requests = [self._inputs(query) for query in self.workload.queries]
        decodes = [group for inputs in requests for group in self._groups(inputs)]
        n_tokens = max(
            sum(len(prompt_input.tokens) + len(prompt_input.reader.trie.fed) for prompt_input in group)
            for group in decodes
        )
        n_rows = max(sum(len(prompt_input.reader.trie.read) for prompt_input in group) for group in decodes)
        prefixes = [prompt.compiled.prefix for prompt in self.workload.prompts] if self.cached else []
        ours = self.workload.classifier.engine  # its limits hold for the other methods as well
        n_batch = max(ours.context.n_batch, n_tokens, n_rows, n_seq)
        self._context = NativeContext(
            ours.model.native,
            n_ctx=whole_cells(sum(map(len, prefixes)) + n_batch),
            n_batch=n_batch,
            n_seq_max=n_seq,
            n_outputs_max=max(n_rows, n_seq),
            n_threads=self.workload.n_threads,
            hidden_only=False,
            flash_attn=self.workload.flash_attn,
            visible_cells=False,
            kv_type=self.workload.runtime.kv_type,
        )
        self._rows = np.empty((max(n_rows, 1), self._context.row_size), np.float32)
        for index, prefix in enumerate(prefixes):
            if prefix:
                self._store(index, prefix)

    def _store(self, index: int, prefix: tuple[int, ...]) -> None:
        tree = TokenTree()
        tree.add_path(tree.add_root(0), prefix)
        plan = tree.finish([self._holders[index]])
        self._context.decode(plan.token, plan.pos, plan.seq_offset, plan.seq_id, plan.output, self._rows[:0])
        self._share(index, len(prefix))

    def _share(self, index: int, n_cached: int) -> None:
        """Make the leaves of a prompt hold the first n_cached tokens of its prefix, and nothing else."""
        seqs = np.array(self._seqs[index], np.int32)
        self._context.trim(seqs, np.zeros(len(seqs), np.int32))
        for seq in self._seqs[index] if n_cached else ():
            self._context.share(self._holders[index], seq, 0, n_cached)

    def _inputs(self, query: str) -> list[PromptInput]:
        inputs = []
        for prompt, seqs in zip(self.workload.prompts, self._seqs, strict=True):
            n_cached, tokens = self.workload.tokens(prompt.compiled, query)
            if not self.cached:
                whole = [*prompt.compiled.head, *prompt.compiled.stable]
                n_cached, tokens = 0, [*whole[:n_cached], *tokens]
            inputs.append(PromptInput(reader=prompt.reader, seqs=seqs, n_cached=n_cached, tokens=tokens))
        return inputs

    def _groups(self, inputs: Sequence[PromptInput]) -> list[list[PromptInput]]:
        """The inputs of each decode."""
        return [[prompt_input] for prompt_input in inputs]

    def _read(self, query: str) -> list[list[Float32Array]]:
        """For each prompt the logits at the nodes that its labels' scores read, (n_vocab,) each.

        Where one decode holds all prompts they are views into a buffer that the next decode overwrites.
        """
        logits: list[list[Float32Array]] = []
        inputs = self._inputs(query)
        broken = [
            index
            for index, prompt_input in enumerate(inputs)
            if self.cached and prompt_input.n_cached < self._n_prefix(index)
        ]
        for index in broken:  # the query changed what is cached
            self._share(index, inputs[index].n_cached)
        groups = self._groups(inputs)
        for group in groups:
            rows = self._decode(group)
            logits += rows if len(groups) == 1 else [[row.copy() for row in of_prompt] for of_prompt in rows]
        for index in broken:
            self._share(index, self._n_prefix(index))
        return logits

    def _n_prefix(self, index: int) -> int:
        return len(self.workload.prompts[index].compiled.prefix)

    def _decode(self, inputs: Sequence[PromptInput]) -> list[list[Float32Array]]:
        tree = TokenTree()
        read: list[list[int]] = []
        for prompt_input in inputs:
            nodes = [tree.add_path(tree.add_root(prompt_input.n_cached), prompt_input.tokens)]
            for parent, token in prompt_input.reader.trie.fed:
                nodes.append(tree.add_path(nodes[parent], (token,)))
            read.append([nodes[node] for node in prompt_input.reader.trie.read])
            for node in read[-1]:
                tree.read(node)
        seqs = [seq for prompt_input in inputs for seq in prompt_input.seqs]
        plan = tree.finish(seqs)
        rows = self._rows[: plan.n_outputs]
        self._context.decode(plan.token, plan.pos, plan.seq_offset, plan.seq_id, plan.output, rows)
        if self.cached and self.workload.classifier.engine.model.has_states:  # which cannot be trimmed back
            for prompt_input in inputs:
                self._share(self._seqs.index(prompt_input.seqs), prompt_input.n_cached)
        else:
            kept = [prompt_input.n_cached for prompt_input in inputs for _ in prompt_input.seqs]
            self._context.trim(np.array(seqs, np.int32), np.array(kept, np.int32))
        return [[rows[plan.node_row[node]] for node in nodes] for nodes in read]

    def classify(self, query: str) -> list[Answer]:
        return [
            _answer(prompt.reader, rows, exact=False)
            for prompt, rows in zip(self.workload.prompts, self._read(query), strict=True)
        ]

    def audit(self, query: str) -> list[Answer]:
        return [
            _answer(prompt.reader, rows, exact=True)
            for prompt, rows in zip(self.workload.prompts, self._read(query), strict=True)
        ]

    def close(self) -> None:
        if hasattr(self, "_context"):
            self._context.close()


def _answer(reader: LabelReader, rows: Sequence[Float32Array], *, exact: bool) -> Answer:
    edges = [row[tokens] for row, tokens in zip(rows, reader.edge_tokens, strict=True)]
    tree = reader.tree(edges)
    joint = reader.joint(edges, [log_normaliser(row) for row in rows]) if exact else ()
    return Answer(label=reader.winner(tree), tree=tree, joint=joint)


class Naive(StockMethod):
    """The whole prompt, one decode a prompt."""

    name: ClassVar[str] = "naive"
    about: ClassVar[str] = "stock llama.cpp, all logits: one decode a prompt, nothing cached"
    cached: ClassVar[bool] = False


class Prefix(StockMethod):
    """What follows the cached prefix, one decode a prompt."""

    name: ClassVar[str] = "prefix"
    about: ClassVar[str] = (
        "stock llama.cpp, all logits: one decode a prompt, every prompt's prefix cached in sequences of its own"
    )
    cached: ClassVar[bool] = True


class Batched(StockMethod):
    """What follows the cached prefixes, one decode for all prompts."""

    name: ClassVar[str] = "batched"
    about: ClassVar[str] = (
        "stock llama.cpp, all logits: one decode for all prompts, prefixes cached, prompts share no tokens"
    )
    cached: ClassVar[bool] = True

    def _groups(self, inputs: Sequence[PromptInput]) -> list[list[PromptInput]]:
        return [list(inputs)]
