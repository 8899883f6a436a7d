"""What a configuration costs with a model, and what the model reads of a prompt with a query.

All functions but `inspect_classifier` and `show_prompts` compute with compiled prompts and a tokenizer only.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from ..classifier import Classifier
from ..config.heads_file import Head
from ..config.schema import MAX_SEQ, chosen_prompts
from ..config.template import SLOT
from ..native.device import instruction_sets
from ..prompts.compiled import PROBES, Prompt, Tokenizer, common_prefix
from ..prompts.trie import Pointer
from . import records

COST_QUERY_TOKENS, CUE_TOKENS = 6, 2
"""tokens of the query whose cost is computed, and of the words that name a prompt after a common text"""


def inspect_classifier(classifier: Classifier) -> records.Inspection:
    """The record of a classifier that is ready for queries."""
    config, prompts = classifier.config, classifier.prompts
    engine, tokenizer = classifier.engine, classifier.engine.model
    memory = engine.context.counters()
    max_batch = config.runtime.max_batch
    n_leaves, n_holders = sum(prompt.trie.n_leaves for prompt in prompts), len({prompt.prefix for prompt in prompts})
    templates = classifier.configured.templates
    inspected = [_inspect_prompt(prompt, prompts, tokenizer) for prompt in prompts]
    empty = classifier.plan_counts("")
    request = records.Request(
        n_decodes=empty.n_decodes,
        n_tokens=empty.n_tokens_new,
        n_tokens_unshared=sum(prompt.added.n_tokens + prompt.n_tokens_labels for prompt in inspected),
        n_tokens_cached=empty.n_tokens_cached,
        n_positions=empty.n_positions,
        n_query_copies=len({(prompt.prefix, prompt.before) for prompt in prompts}),
    )
    longest = templates.size_of_query(n_longest := config.runtime.max_query_tokens)
    return records.Inspection(
        config=None if config.path is None else str(config.path),
        model=classifier.model,
        instruction_sets=instruction_sets(),
        startup_ms=classifier.startup_ms,
        context=records.ContextSizes(
            n_ctx=engine.context.n_ctx,
            n_batch=engine.context.n_batch,
            n_outputs_max=engine.context.n_outputs_max,
            n_cells_prefixes=engine.cache.n_cells,
            cache_bytes=memory.cache_bytes,
            state_bytes=tokenizer.facts.state_bytes,
            compute_bytes=memory.compute_bytes,
            graphs_bytes=memory.shapes_bytes,
            why_no_visible_cells=engine.context.why_no_visible_cells,
        ),
        sequences=records.Sequences(
            n_holders=n_holders,
            n_leaves=n_leaves,
            max_batch=max_batch,
            n_needed=n_holders + n_leaves * max_batch,
            n_seq_max=engine.context.n_seq_max,
            n_state_seqs=engine.context.n_state_seqs if tokenizer.has_states else 0,
            n_limit=MAX_SEQ,
        ),
        request=request,
        costs=costs(request, inspected),
        longest=longest and records.LongestQuery(n_query_tokens=n_longest, n_tokens=longest[1], n_decodes=longest[0]),
        prompts=tuple(
            each.model_copy(update={"head": _head(head, tokenizer.facts.n_layer)})
            for each, head in zip(inspected, classifier.configured.compiled.heads, strict=True)
        ),
        warnings=classifier.warnings,
    )


def costs(request: records.Request, prompts: Sequence[records.PromptInspection]) -> tuple[records.Cost, ...]:
    """What a usual query feeds, and what it would feed with other texts, in tokens; alternatives that are cheaper."""
    n, labels = len(prompts), sum(prompt.n_tokens_labels for prompt in prompts)
    n_query = COST_QUERY_TOKENS - max(len(prompt.added.fragment[:1]) for prompt in prompts)  # in place of a space
    now = request.n_tokens + n_query * request.n_query_copies
    heads = n_query + max(prompt.added.n_tokens for prompt in prompts)
    other = {
        "with one common text for all prompts": heads + CUE_TOKENS * n + labels if request.n_query_copies > 1 else now,
        "with heads learned on one common text": heads,
        "with labels that differ in their first tokens": now - labels,
    }
    cheaper = {what: n_tokens for what, n_tokens in other.items() if n_tokens < now}
    return tuple(
        records.Cost(what=what, n_tokens=n_tokens, share=n_tokens / now)
        for what, n_tokens in {"as configured": now, **cheaper}.items()
    )


def _head(head: Head | Pointer | None, n_layer: int) -> records.HeadInspection | None:
    if not isinstance(head, Head):
        return None
    of_head = {key: getattr(head, key) for key in ("depth", "text", "reads_labels", "n_rows", "accuracy")}
    return records.HeadInspection(n_layer=n_layer, **of_head)


def _inspect_prompt(prompt: Prompt, prompts: Sequence[Prompt], tokenizer: Tokenizer) -> records.PromptInspection:
    """A prompt by itself, and what its prefix shares with the others."""
    _, added = prompt.new_tokens(prompt.fragment_tokens(tokenizer, ""))
    n_fragment = len(added) - len(prompt.closing)
    n_cached, _ = prompt.new_tokens(prompt.fragment_tokens(tokenizer, PROBES[0]))
    shared = {other.name: common_prefix(prompt.prefix, other.prefix) for other in prompts if other is not prompt}
    n_shared = max(shared.values(), default=0)
    ended = ended_labels(prompt)
    return records.PromptInspection(
        name=prompt.name,
        scoring=prompt.trie.scoring,
        fast_path=n_cached == len(prompt.prefix),
        prefix=records.Prefix(
            n_tokens=len(prompt.prefix),
            n_shared=n_shared,
            shared_with=tuple(name for name, n in shared.items() if n == n_shared > 0),
        ),
        added=records.AddedTokens(
            n_tokens=len(added),
            fragment=_texts(added[:n_fragment], tokenizer),
            suffix=_texts(added[n_fragment:], tokenizer),
        ),
        n_tokens_labels=len(prompt.trie.fed),
        n_positions=len(prompt.trie.read),
        n_leaves=prompt.trie.n_leaves,
        labels=tuple(
            records.LabelTokens(
                label=label,
                tokens=_texts(tokens, tokenizer),
                end=_texts(path[-1:], tokenizer)[0] if len(path) > len(tokens) else None,
            )
            for label, tokens, path in zip(prompt.labels, prompt.label_tokens, ended, strict=True)
        ),
        trie=label_trie(prompt, ended, tokenizer),
    )


def ended_labels(prompt: Prompt) -> list[tuple[int, ...]]:
    """The tokens of each label, with the end-of-label token after a label that another one begins with."""
    paths = []
    for tokens, edges in zip(prompt.label_tokens, prompt.trie.label_edges, strict=True):
        is_beginning = any(len(other) > len(tokens) and other[: len(tokens)] == tokens for other in prompt.label_tokens)
        # such a label ends at a fork, so that its last edge is the one of its end token
        paths.append((*tokens, prompt.trie.edges[edges[-1]].token) if is_beginning else tokens)
    return paths


def label_trie(prompt: Prompt, ended: Sequence[tuple[int, ...]], tokenizer: Tokenizer) -> records.TrieNode:
    """The label trie of a prompt; ended: what `ended_labels` gives for it."""
    paths: list[tuple[int, ...]] = [()]
    for parent, token in prompt.trie.fed:
        paths.append((*paths[parent], token))
    fed, read = set(paths), {paths[node] for node in prompt.trie.read}
    label_of = dict(zip(ended, prompt.labels, strict=True))

    def grow(path: tuple[int, ...]) -> records.TrieNode:
        depth = len(path)
        following = dict.fromkeys(other[depth] for other in ended if len(other) > depth and other[:depth] == path)
        return records.TrieNode(
            token=path[-1] if path else None,
            text=_text(tokenizer, path[-1]) if path else "",
            label=label_of.get(path),
            fed=path in fed,
            read=path in read,
            children=tuple(grow((*path, token)) for token in following),
        )

    return grow(())


def _texts(tokens: Sequence[int], tokenizer: Tokenizer) -> tuple[records.Token, ...]:
    return tuple(records.Token(token=token, text=_text(tokenizer, token)) for token in tokens)


def _text(tokenizer: Tokenizer, token: int) -> str:
    """The text of a token; bytes that are no whole character become escapes such as \\xe7."""
    return tokenizer.piece(token)[0].decode(errors="backslashreplace")


def show_prompts(classifier: Classifier, names: Sequence[str], query: str) -> records.ShownPrompts:
    """The prompts of some names, all if none is given. Raises ConfigError for another name, PlanError for the query."""
    chosen = {prompt.name for prompt in chosen_prompts(classifier.config, names)}
    classifier.check(query)
    tokenizer = classifier.engine.model
    compiled = classifier.configured.compiled
    pairs = zip(compiled.prompts, compiled.settings, compiled.heads, strict=True)
    return records.ShownPrompts(
        query=query,
        prompts=tuple(
            show_prompt(prompt, (head and head.text) or config.expanded_template, tokenizer, query)
            for prompt, config, head in pairs
            if prompt.name in chosen
        ),
        warnings=classifier.warnings,
    )


def show_prompt(prompt: Prompt, template: str, tokenizer: Tokenizer, query: str) -> records.ShownPrompt:
    """A compiled prompt with a query; template: its text, with the query's slot."""
    n_cached, fed = prompt.new_tokens(prompt.fragment_tokens(tokenizer, query))
    tokens = [*prompt.prefix[:n_cached], *fed]
    pieces = [tokenizer.piece(token) for token in tokens]
    kinds = [(is_control, index < n_cached) for index, (_, is_control) in enumerate(pieces)]
    runs = groupby(zip(kinds, pieces, strict=True), key=lambda pair: pair[0])
    return records.ShownPrompt(
        name=prompt.name,
        text=template.replace(SLOT, query),
        parts=tuple(
            records.ShownPart(
                text=b"".join(piece for _, (piece, _) in run).decode(errors="backslashreplace"),
                is_control=is_control,
                is_cached=is_cached,
            )
            for (is_control, is_cached), run in runs
        ),
        fast_path=n_cached == len(prompt.prefix),
        n_cached=n_cached,
        n_fed=len(fed),
        tokens=tuple(
            records.ShownToken(token=token, text=_text(tokenizer, token), is_control=is_control, is_cached=is_cached)
            for token, (is_control, is_cached) in zip(tokens, kinds, strict=True)
        ),
        labels=label_trie(prompt, ended_labels(prompt), tokenizer),
    )
