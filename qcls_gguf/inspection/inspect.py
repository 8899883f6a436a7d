"""What a configuration costs with a model, and what the model reads of a prompt with a query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ..classifier import Classifier
from ..config.fitted import Head
from ..config.prompt import SLOT
from ..config.schema import MAX_SEQ, chosen_prompts
from ..model.header import TensorInfo
from ..native.device import OWN_TYPES, instruction_sets
from ..prompts.compiled import PROBES, Prompt, Tokenizer, common_prefix
from . import records

COST_QUERY_TOKENS, CUE_TOKENS = 6, 2
"""tokens of the query whose cost is computed, and of the words that name a prompt after a common text"""


def inspect_classifier(classifier: Classifier) -> records.Inspection:
    """The record of a classifier that is ready for queries."""
    config, prompts, context = classifier.config, classifier.prompts, classifier.engine.context
    tokenizer, memory, max_batch = classifier.engine.model, context.counters(), config.runtime.max_batch
    n_leaves, n_holders = sum(prompt.trie.n_leaves for prompt in prompts), len({prompt.prefix for prompt in prompts})
    n_longest = config.runtime.max_query_tokens
    n_decodes, n_tokens = classifier.templates.size_of_query(n_longest) or (None, None)
    inspected = tuple(_inspected(prompt, prompts, tokenizer, tokenizer.facts.n_layer) for prompt in prompts)
    empty = classifier.plan_counts("")
    request = records.Request(
        n_decodes=empty.n_decodes,
        n_tokens=empty.n_tokens_new,
        n_tokens_unshared=sum(prompt.n_added + prompt.n_tokens_labels for prompt in inspected),
        n_tokens_cached=empty.n_tokens_cached,
        n_positions=empty.n_positions,
        n_query_copies=len({(prompt.prefix, prompt.before) for prompt in prompts}),
        n_longest=n_longest,
        n_decodes_longest=n_decodes,
        n_tokens_longest=n_tokens,
    )
    return records.Inspection(
        config=None if config.path is None else str(config.path),
        model=classifier.model,
        stock_types=stock_types(tokenizer.file.tensors.values(), bool(classifier.model.n_gpu_layers)),
        instruction_sets=instruction_sets(),
        startup_ms=classifier.startup_ms,
        context=records.ContextSizes(
            n_ctx=context.n_ctx,
            n_batch=context.n_batch,
            n_outputs_max=context.n_outputs_max,
            n_cells_prefixes=classifier.engine.cache.n_cells,
            cache_bytes=memory.cache_bytes,
            state_bytes=tokenizer.facts.state_bytes,
            compute_bytes=memory.compute_bytes,
            graphs_bytes=memory.shapes_bytes,
            why_no_visible_cells=context.why_no_visible_cells,
            n_holders=n_holders,
            n_leaves=n_leaves,
            max_batch=max_batch,
            n_seq_needed=n_holders + n_leaves * max_batch,
            n_seq_max=context.n_seq_max,
            n_state_seqs=context.n_state_seqs if tokenizer.has_states else 0,
            n_seq_limit=MAX_SEQ,
        ),
        request=request,
        costs=_costs(request, inspected),
        prompts=inspected,
        warnings=classifier.warnings,
    )


def stock_types(tensors: Iterable[TensorInfo], on_gpu: bool) -> dict[str, float]:
    """The types of a file's matrices that this project's kernels do not multiply by, with their share of the bytes."""
    from gguf import GGMLQuantizationType  # takes long to load

    n_bytes: Counter[str] = Counter()
    for tensor in tensors:
        if len(tensor.shape) > 1 and tensor.name.startswith("blk."):
            n_bytes[GGMLQuantizationType(tensor.ggml_type).name] += tensor.n_bytes
    with_kernels = OWN_TYPES["GPU" if on_gpu else "CPU"]
    return {name: n / n_bytes.total() for name, n in n_bytes.most_common() if name not in with_kernels}


def _costs(request: records.Request, prompts: Sequence[records.PromptInspection]) -> tuple[records.Cost, ...]:
    """What a usual query feeds, and what it would feed with other texts, in tokens; alternatives that are cheaper."""
    n, labels = len(prompts), sum(prompt.n_tokens_labels for prompt in prompts)
    n_query = COST_QUERY_TOKENS - max(len(prompt.fragment[:1]) for prompt in prompts)  # in place of a space
    now = request.n_tokens + n_query * request.n_query_copies
    heads = n_query + max(prompt.n_added for prompt in prompts)
    other = {
        "with one common text for all prompts": heads + CUE_TOKENS * n + labels if request.n_query_copies > 1 else now,
        "with heads learnt on one common text": heads,
        "with labels that differ in their first tokens": now - labels,
    }
    cheaper = {what: n_tokens for what, n_tokens in other.items() if n_tokens < now}
    return tuple(
        records.Cost(what=what, n_tokens=n_tokens, share=n_tokens / now)
        for what, n_tokens in {"as configured": now, **cheaper}.items()
    )


def _inspected(
    prompt: Prompt, prompts: Sequence[Prompt], tokenizer: Tokenizer, n_layer: int
) -> records.PromptInspection:
    """A prompt by itself, and what its prefix shares with the others."""
    _, added = prompt.new_tokens(prompt.fragment_tokens(tokenizer, ""))
    n_fragment = len(added) - len(prompt.closing)
    n_cached, _ = prompt.new_tokens(prompt.fragment_tokens(tokenizer, PROBES[0]))
    shared = {other.name: common_prefix(prompt.prefix, other.prefix) for other in prompts if other is not prompt}
    n_shared = max(shared.values(), default=0)
    texts = _tokens(tokenizer, added)
    head = None
    if isinstance(prompt.head, Head):
        of_head = {key: getattr(prompt.head, key) for key in ("depth", "text", "reads_labels", "n_rows", "accuracy")}
        head = records.HeadInspection(n_layer=n_layer, **of_head)
    return records.PromptInspection(
        name=prompt.name,
        scoring=prompt.trie.scoring,
        head=head,
        fast_path=n_cached == len(prompt.prefix),
        n_cached=len(prompt.prefix),
        n_shared=n_shared,
        shared_with=tuple(name for name, n in shared.items() if n == n_shared > 0),
        n_added=len(added),
        fragment=texts[:n_fragment],
        suffix=texts[n_fragment:],
        n_labels=len(prompt.labels),
        n_tokens_labels=len(prompt.trie.fed),
        n_positions=len(prompt.trie.read),
        n_leaves=prompt.trie.n_leaves,
        labels=label_tokens(prompt, tokenizer),
    )


def label_tokens(prompt: Prompt, tokenizer: Tokenizer) -> tuple[records.LabelTokens, ...]:
    """The tokens of a prompt's labels."""
    nodes = {edge: node for node, edge in enumerate(prompt.trie.fed, 1)}
    found = []
    for label, tokens, edges in zip(prompt.labels, prompt.label_tokens, prompt.trie.label_edges, strict=True):
        is_beginning = any(len(other) > len(tokens) and other[: len(tokens)] == tokens for other in prompt.label_tokens)
        # such a label ends at a fork, so that its last edge is the one of its end token
        whole = (*tokens, prompt.trie.edges[edges[-1]].token) if is_beginning else tokens
        node, n_fed = 0, 0
        while n_fed < len(whole) and (node := nodes.get((node, whole[n_fed]), 0)):
            n_fed += 1
        found.append(records.LabelTokens(label=label, tokens=_tokens(tokenizer, whole), n_fed=n_fed))
    return tuple(found)


def _tokens(tokenizer: Tokenizer, tokens: Sequence[int]) -> tuple[records.Token, ...]:
    return tuple(records.Token(token=token, text=_text(tokenizer, token)) for token in tokens)


def _text(tokenizer: Tokenizer, token: int) -> str:
    """The text of a token; bytes that are no whole character become escapes such as \\xe7."""
    return tokenizer.piece(token)[0].decode(errors="backslashreplace")


def show_prompts(classifier: Classifier, names: Sequence[str], query: str) -> records.ShownPrompts:
    """The prompts of some names, all if none is given. Raises ConfigError for another name, PlanError for the query."""
    chosen = {prompt.name for prompt in chosen_prompts(classifier.config, names)}
    classifier.check(query)
    prompts = tuple(
        _shown_prompt(prompt, classifier.engine.model, classifier.core.as_read(query))
        for prompt in classifier.compiled.prompts
        if prompt.name in chosen
    )
    return records.ShownPrompts(query=query, prompts=prompts, warnings=classifier.warnings)


def _shown_prompt(prompt: Prompt, tokenizer: Tokenizer, query: str) -> records.ShownPrompt:
    n_cached, fed = prompt.new_tokens(prompt.fragment_tokens(tokenizer, query))
    tokens = [*prompt.prefix[:n_cached], *fed]
    template = (prompt.head and prompt.head.text) or prompt.settings.expanded_template
    return records.ShownPrompt(
        name=prompt.name,
        text=template.replace(SLOT, query),
        fast_path=n_cached == len(prompt.prefix),
        n_cached=n_cached,
        n_fed=len(fed),
        tokens=tuple(
            records.ShownToken(
                token=token,
                text=_text(tokenizer, token),
                is_control=tokenizer.piece(token)[1],
                is_cached=place < n_cached,
            )
            for place, token in enumerate(tokens)
        ),
        labels=label_tokens(prompt, tokenizer),
    )
