"""Methods on our own loaded model: our classifier, and three ways of asking llama.cpp with all logits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from ..config.scoring import FIRST_TOKEN, TREE
from ..engine.capacity import whole_cells
from ..engine.engine import MAX_SEQ, Engine
from ..native import NativeContext
from ..plan.tree import Root, TokenTree
from . import Peers
from .method import AbsentError, Answer, Method, Workload


class Qcls(Method):
    """Our own classifier in the configuration's scoring."""

    def __init__(self, workload: Workload, peers: Peers) -> None:
        self._workload = workload

    def ask(self, query: str, exact: bool = False) -> list[Answer]:
        """With `exact` also log-probabilities among the labels, where the configured scoring is of the label tree."""
        results = self._workload.ours.classify(query).results
        if not exact:
            return [Answer(label=answer.most_probable) for answer in results]
        answers = []
        for answer, prompt in zip(results, self._workload.ours.prompts, strict=True):
            is_tree = prompt.trie.scoring in (TREE, FIRST_TOKEN) and all(s.probability > 0 for s in answer.scores)
            tree = tuple(math.log(score.probability) for score in answer.scores) if is_tree else None
            joint = answer.audit.joint if answer.audit else ()
            answers.append(Answer(label=answer.most_probable, tree=tree, joint=joint))
        return answers


class Naive(Method):
    """Stock llama.cpp with all logits: the whole prompt, one decode a prompt."""

    is_cached: ClassVar[bool] = False
    """whether every prompt's prefix stays in the cache"""
    in_one_decode: ClassVar[bool] = False
    """whether all prompts share a decode"""

    def __init__(self, workload: Workload, peers: Peers) -> None:
        self._workload, ours = workload, workload.ours.engine
        readers = [prompt.reader for prompt in workload.prompts]
        prefixes = [prompt.compiled.prefix for prompt in workload.prompts if self.is_cached and prompt.compiled.prefix]
        indices = range(len(readers))
        self._decodes = [list(indices)] if self.in_one_decode else [[index] for index in indices]
        n_leaves = max(sum(readers[index].trie.n_leaves for index in decode) for decode in self._decodes)
        n_seq = n_leaves + len(prefixes)
        if n_seq > MAX_SEQ:
            raise AbsentError(f"it needs {n_seq} sequences, and llama.cpp has {MAX_SEQ}: compare with fewer prompts")
        n_rows = max(sum(len(readers[index].trie.read) for index in decode) for decode in self._decodes)
        n_tokens = max(
            sum(len(inputs[index][1]) + len(readers[index].trie.fed) for index in decode)
            for inputs in map(self._inputs, workload.queries)
            for decode in self._decodes
        )
        n_batch = max(ours.context.n_batch, n_tokens, n_rows, n_seq)  # our limits hold for the other methods as well
        context = NativeContext(
            ours.model.native,
            n_ctx=whole_cells(sum(map(len, prefixes)) + n_batch),
            n_batch=n_batch,
            n_seq_max=n_seq,
            n_outputs_max=max(n_rows, n_seq),
            n_threads=workload.n_threads,
            hidden_only=False,
            flash_attn=workload.flash_attn,
            visible_cells=False,
            kv_type=workload.runtime.kv_type,
        )
        self._engine = Engine(ours.model, context, n_leaf_seqs=n_leaves)
        try:
            self._holders = {prefix.tokens: prefix.holder for prefix in self._engine.hold(prefixes)}
        except BaseException:
            self.close()
            raise

    def _inputs(self, query: str) -> list[tuple[int, list[int]]]:
        """For each prompt how many tokens of it are in the cache, and those that follow."""
        inputs = []
        for prompt in self._workload.prompts:
            n_cached, tokens = self._workload.tokens(prompt.compiled, query)
            if not self.is_cached:
                whole = [*prompt.compiled.head, *prompt.compiled.stable]
                n_cached, tokens = 0, [*whole[:n_cached], *tokens]
            inputs.append((n_cached, tokens))
        return inputs

    def ask(self, query: str, exact: bool = False) -> list[Answer]:
        inputs = self._inputs(query)
        return [answer for decode in self._decodes for answer in self._decode(decode, inputs, exact)]

    def _decode(self, indices: Sequence[int], inputs: Sequence[tuple[int, list[int]]], exact: bool) -> list[Answer]:
        """The answers for some prompts, which share no tokens, by one decode."""
        prompts = [self._workload.prompts[index] for index in indices]
        tree = TokenTree()
        roots, read = [], []
        for index, prompt in zip(indices, prompts, strict=True):
            n_cached, tokens = inputs[index]
            nodes = [tree.add_path(tree.add_root(n_cached), tokens)]
            for parent, token in prompt.reader.trie.fed:
                nodes.append(tree.add_path(nodes[parent], (token,)))
            read.append([nodes[node] for node in prompt.reader.trie.read])
            for node in read[-1]:
                tree.read(node)
            holder = self._holders[prompt.compiled.prefix] if n_cached else -1
            roots += [Root(holder=holder, n_cached=n_cached)] * prompt.reader.trie.n_leaves
        plan = tree.finish(range(len(roots)))
        rows = self._engine.decode(plan, roots).hidden
        return [
            prompt.reader.answer_of_rows([rows[plan.node_row[node]] for node in nodes], exact=exact)
            for prompt, nodes in zip(prompts, read, strict=True)
        ]

    def close(self) -> None:
        self._engine.close()


class Prefix(Naive):
    """What follows the cached prefix, one decode a prompt."""

    is_cached: ClassVar[bool] = True


class Batched(Prefix):
    """What follows the cached prefixes, one decode for all prompts."""

    in_one_decode: ClassVar[bool] = True
