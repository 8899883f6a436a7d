"""Methods on this package's library: our classifier, and three ways of asking llama.cpp with all logits."""

from __future__ import annotations

from collections.abc import Sequence

from ..config.schema import MAX_SEQ
from ..engine.capacity import whole_cells
from ..engine.engine import Engine
from ..model.placement import flash_attention
from ..native import NativeContext
from ..plan.tree import Root, TokenTree
from .method import Answer, Method, PeerError, Workload


class Qcls(Method):
    """Our own classifier in the configuration's scoring."""

    def __init__(self, workload: Workload) -> None:
        self._classifier = workload.ours

    def ask(self, query: str, exact: bool = False) -> list[Answer]:
        """Log-probabilities over the whole vocabulary only where the configured scoring is exact."""
        return [
            Answer(label=answer.most_probable, joint=answer.audit.joint if answer.audit else ())
            for answer in self._classifier.classify(query).results
        ]

    def remarks(self) -> list[str]:
        """Which prompts are answered in another way than by the other methods."""
        compiled = self._classifier.configured.compiled
        of = [
            f"{prompt.name} after {head.depth} of {self._classifier.engine.model.facts.n_layer} layers"
            for prompt, head in zip(compiled.prompts, compiled.heads, strict=True)
            if head
        ]
        return [f"heads answer {', '.join(of)}; the other methods read the labels' texts"] if of else []


class Stock(Method):
    """Stock llama.cpp with all logits."""

    def __init__(self, workload: Workload, *, cached: bool = False, together: bool = False) -> None:
        """cached: whether every prompt's prefix stays in the cache; together: whether all prompts share a decode."""
        prompts, model, runtime = workload.prompts, workload.stock_model, workload.ours.config.runtime
        self._workload, self._prompts, self._cached = workload, prompts, cached
        self._decodes = [range(len(prompts))] if together else [range(i, i + 1) for i in range(len(prompts))]
        prefixes = [prompt.compiled.prefix for prompt in prompts if cached and prompt.compiled.prefix]
        n_leaves = max(sum(prompts[i].trie.n_leaves for i in decode) for decode in self._decodes)
        n_seq = n_leaves + len(prefixes)
        if n_seq > MAX_SEQ:
            raise PeerError(f"it needs {n_seq} sequences, and llama.cpp has {MAX_SEQ}: compare with fewer prompts")
        n_rows = max(sum(len(prompts[i].trie.read) for i in decode) for decode in self._decodes)
        n_tokens = max(
            sum(len(inputs[i][1]) + len(prompts[i].trie.fed) for i in decode)
            for inputs in map(self._inputs, workload.queries)
            for decode in self._decodes
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
        self._engine = Engine(model, context, n_leaf_seqs=n_leaves)
        try:
            self._holders = {prefix.tokens: prefix.holder for prefix in self._engine.hold(prefixes)}
        except BaseException:
            self.close()
            raise

    def _inputs(self, query: str) -> list[tuple[int, list[int]]]:
        """For each prompt how many tokens of its prefix are cached, and the tokens that are fed."""
        inputs = self._workload.inputs(query)
        if self._cached:
            return inputs
        starts = [[*prompt.compiled.opening, *prompt.compiled.stable] for prompt in self._prompts]
        return [(0, [*start[:n], *tokens]) for start, (n, tokens) in zip(starts, inputs, strict=True)]

    def ask(self, query: str, exact: bool = False) -> list[Answer]:
        inputs = self._inputs(query)
        return [answer for decode in self._decodes for answer in self._decode(decode, inputs, exact)]

    def _decode(self, indices: Sequence[int], inputs: Sequence[tuple[int, list[int]]], exact: bool) -> list[Answer]:
        """The answers for some prompts, which share no tokens, by one decode."""
        tree = TokenTree()
        roots, read = [], []
        for index in indices:
            prompt, (n_cached, tokens) = self._prompts[index], inputs[index]
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
