"""Methods on this package's library: our classifier, and three ways of asking llama.cpp with all logits."""

from __future__ import annotations

import math
from collections.abc import Sequence

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
        self._classifier = workload.ours

    def ask(self, query: str, exact: bool = False) -> list[Answer]:
        """With `exact` also log-probabilities among the labels, where the configured scoring is of the label tree."""
        results = self._classifier.classify(query).results
        if not exact:
            return [Answer(label=answer.most_probable) for answer in results]
        answers = []
        for answer, prompt in zip(results, self._classifier.prompts, strict=True):
            is_tree = prompt.trie.scoring in (TREE, FIRST_TOKEN) and all(s.probability > 0 for s in answer.scores)
            tree = tuple(math.log(score.probability) for score in answer.scores) if is_tree else None
            joint = answer.audit.joint if answer.audit else ()
            answers.append(Answer(label=answer.most_probable, tree=tree, joint=joint))
        return answers


class Stock(Method):
    """Stock llama.cpp with all logits."""

    def __init__(self, workload: Workload, peers: Peers, *, cached: bool = False, together: bool = False) -> None:
        """cached: whether every prompt's prefix stays in the cache; together: whether all prompts share a decode."""
        prompts, model = workload.prompts, workload.stock_model
        assert model is not None, "it is in the process of our classifier"
        self._prompts, self._inputs = prompts, workload.inputs
        if not cached:
            self._inputs = {query: _whole(workload, query) for query in workload.inputs}
        self._decodes = [range(len(prompts))] if together else [range(i, i + 1) for i in range(len(prompts))]
        prefixes = [prompt.compiled.prefix for prompt in prompts if cached and prompt.compiled.prefix]
        n_leaves = max(sum(prompts[i].trie.n_leaves for i in decode) for decode in self._decodes)
        n_seq = n_leaves + len(prefixes)
        if n_seq > MAX_SEQ:
            raise AbsentError(f"it needs {n_seq} sequences, and llama.cpp has {MAX_SEQ}: compare with fewer prompts")
        n_rows = max(sum(len(prompts[i].trie.read) for i in decode) for decode in self._decodes)
        n_tokens = max(
            sum(len(inputs[i][1]) + len(prompts[i].trie.fed) for i in decode)
            for inputs in self._inputs.values()
            for decode in self._decodes
        )
        n_batch = max(
            workload.ours.engine.context.n_batch, n_tokens, n_rows, n_seq
        )  # our limits hold for the other methods as well
        context = NativeContext(
            model.native,
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
        self._engine = Engine(model, context, n_leaf_seqs=n_leaves)
        try:
            self._holders = {prefix.tokens: prefix.holder for prefix in self._engine.hold(prefixes)}
        except BaseException:
            self.close()
            raise

    def ask(self, query: str, exact: bool = False) -> list[Answer]:
        return [answer for decode in self._decodes for answer in self._decode(decode, query, exact)]

    def _decode(self, indices: Sequence[int], query: str, exact: bool) -> list[Answer]:
        """The answers for some prompts, which share no tokens, by one decode."""
        tree = TokenTree()
        roots, read = [], []
        for index in indices:
            prompt, (n_cached, tokens) = self._prompts[index], self._inputs[query][index]
            nodes = [tree.add_path(tree.add_root(n_cached), tokens)]
            for parent, token in prompt.trie.fed:
                nodes.append(tree.add_path(nodes[parent], (token,)))
            read.append([nodes[node] for node in prompt.trie.read])
            for node in read[-1]:
                tree.read(node)
            holder = self._holders[prompt.compiled.prefix] if n_cached else -1
            roots += [Root(holder=holder, n_cached=n_cached)] * prompt.trie.n_leaves
        plan = tree.finish(range(len(roots)))
        rows = self._engine.decode(plan, roots).hidden
        return [
            self._prompts[index].answer_of_rows([rows[plan.node_row[node]] for node in nodes], exact=exact)
            for index, nodes in zip(indices, read, strict=True)
        ]

    def close(self) -> None:
        self._engine.close()


def _whole(workload: Workload, query: str) -> list[tuple[int, list[int]]]:
    """What is fed of each prompt where nothing is cached."""
    starts = [[*prompt.compiled.head, *prompt.compiled.stable] for prompt in workload.prompts]
    return [(0, [*start[:n], *tokens]) for start, (n, tokens) in zip(starts, workload.inputs[query], strict=True)]
