"""What a configuration costs with a model, and what the model reads of a prompt with a query; and their records."""

from collections.abc import Sequence

from pydantic import Field

from ..classifier import Classifier
from ..config.fitted import Head
from ..config.prompt import SLOT, LikelyMistake
from ..config.schema import chosen_prompts
from ..config.scoring import Scoring
from ..prompts.compiled import PROBES, Prompt, Tokenizer, common_prefix
from ..report.record import Record, left_out_if_none
from ..score.result import ModelInfo

COST_QUERY_TOKENS, CUE_TOKENS = 6, 2
"""tokens of the query whose cost is computed, and of the words that name a prompt after a common text"""
_WARNINGS = Field(description="what is likely a mistake in the prompts of the configuration")


class Token(Record):
    """A token and its text."""

    token: int = Field(description="its id")
    text: str = Field(description="bytes that are no whole character are shown as escapes")


class LabelNode(Record):
    """A token that labels have in common, up to there."""

    text: str = Field(description="its text; empty before the first")
    label: str | None = Field(description="the label that ends with it; of one that begins another with its end token")
    fed: bool = Field(description="whether a request feeds it, to tell labels apart")
    children: "tuple[LabelNode, ...]" = Field(description="the tokens that may follow")


class HeadInspection(Record):
    """The learnt head that answers a prompt instead of its labels' texts."""

    depth: int = Field(description="the layers after which it reads the hidden state")
    n_layer: int = Field(description="of the model")
    text: str | None = Field(description="the text that it reads instead of the prompt's own")
    reads_labels: bool = Field(description="whether it stands beside the labels' texts")
    n_rows: int | None = Field(description="rows that it was learnt from; null where the file does not say, as below")
    accuracy: float | None = Field(description="on rows that were left out while it was learnt")


class PromptInspection(Record):
    """What one prompt costs."""

    name: str = Field(description="the prompt's name")
    scoring: Scoring = Field(description="as configured")
    head: HeadInspection | None = left_out_if_none()
    fast_path: bool = Field(description="whether a usual query leaves the cached prefix unchanged")
    n_cached: int = Field(description="tokens of its prefix, which are cached at start-up")
    n_shared: int = Field(description="tokens of the longest beginning of it that another prompt has too")
    shared_with: tuple[str, ...] = Field(description="names of the prompts that have it")
    n_added: int = Field(description="fragment and suffix: tokens that it adds even to an empty query, without labels'")
    fragment: tuple[Token, ...] = Field(description="text around the query that is tokenised with it, so not cached")
    suffix: tuple[Token, ...] = Field(description="text after that")
    n_labels: int = Field(description="its labels")
    n_tokens_labels: int = Field(description="tokens that a request feeds to tell labels of several tokens apart")
    n_positions: int = Field(description="hidden states that the scores read")
    n_leaves: int = Field(description="sequences that one query needs")
    labels: LabelNode = Field(description="what may follow the last token, as a tree")


class Request(Record):
    """What a request with an empty query, or with the longest, feeds for all prompts together."""

    n_decodes: int = Field(description="decodes of the request")
    n_tokens: int = Field(description="what prompts share counts once; what another decode feeds again counts again")
    n_tokens_unshared: int = Field(description="with every prompt by itself: what the prompts add, and their labels")
    n_tokens_cached: int = Field(description="tokens of the rendered prompts that come from the cache")
    n_positions: int = Field(description="hidden states that the scores read")
    n_query_copies: int = Field(description="how many times every token of a query is fed")
    n_longest: int = Field(description="tokens of the longest query (max_query_tokens)")
    n_decodes_longest: int | None = Field(description="with that query; null, as the next, where lengths do not tell")
    n_tokens_longest: int | None = Field(description="that a request with that query feeds")


class Cost(Record):
    """What a request with a query of 6 tokens feeds, as configured or in another way; computed, not measured."""

    what: str = Field(description="as configured, or what would be different")
    n_tokens: int = Field(description="that the request feeds")
    share: float = Field(description="of the tokens as configured: about its share of the time where many are fed")


class ContextSizes(Record):
    """The context's limits, what the prefixes take of it, and llama.cpp's sequences."""

    n_ctx: int = Field(description="cells of the KV cache")
    n_batch: int = Field(description="tokens of one decode at most")
    n_outputs_max: int = Field(description="hidden states that one decode returns at most")
    n_cells_prefixes: int = Field(description="cells of the prefixes; equal beginnings are stored once")
    cache_bytes: int = Field(description="memory of the KV cache on all devices, with all states of recurrent layers")
    state_bytes: int = Field(description="what recurrent layers keep of a sequence with a state, used or not; 0: none")
    compute_bytes: int = Field(description="compute buffers for the largest decode, on the device with most of them")
    why_no_visible_cells: str | None = Field(description="why a token's attention reads every used cell; or null")
    n_holders: int = Field(description="distinct prefixes, which have a sequence of their own")
    n_leaves: int = Field(description="sequences of all label tries, for one query")
    max_batch: int = Field(description="queries of a request at most")
    n_seq_needed: int = Field(description="n_holders + n_leaves * max_batch")
    n_seq_max: int = Field(description="sequences that the context has")
    n_state_seqs: int = Field(description="of them those that keep states of recurrent layers; 0 where there are none")


class Inspection(Record):
    """What a configuration costs with a model, before any query."""

    config: str | None = Field(description="the configuration's file")
    model: ModelInfo
    startup_ms: dict[str, float] = Field(description="by step of the start-up")
    context: ContextSizes
    request: Request
    costs: tuple[Cost, ...] = Field(description="as configured first, then what would feed less")
    prompts: tuple[PromptInspection, ...] = Field(description="in the order of the configuration")
    warnings: tuple[LikelyMistake, ...] = _WARNINGS


class ShownToken(Token):
    """A token of a prompt."""

    is_control: bool = Field(description="whether it is a control token, or a mark that only a template may hold")
    is_cached: bool = Field(description="whether it was computed at start-up; the others are fed with the query")


class ShownPrompt(Record):
    """A prompt with a query, as the model reads it."""

    name: str = Field(description="the prompt's name")
    text: str = Field(description="the whole text, by the chat template where it was given as system and user")
    fast_path: bool = Field(description="false where the query changes tokens of the cached prefix, which are fed anew")
    n_cached: int = Field(description="tokens that are cached")
    n_fed: int = Field(description="tokens that the query's request feeds, without those of labels")
    tokens: tuple[ShownToken, ...] = Field(description="all of them, in order, with those that the tokenizer adds")
    labels: LabelNode = Field(description="what may follow the last token, as a tree")


class ShownPrompts(Record):
    """Prompts with a query, as the model reads them."""

    query: str = Field(description="the query in its slot")
    prompts: tuple[ShownPrompt, ...] = Field(description="the prompts that were asked for")
    warnings: tuple[LikelyMistake, ...] = _WARNINGS


def inspect_classifier(classifier: Classifier) -> Inspection:
    """The record of a classifier that is ready for queries."""
    config, prompts, context = classifier.config, classifier.compiled.fed, classifier.engine.context
    tokenizer, memory, max_batch = classifier.engine.model, context.counters(), config.runtime.max_batch
    n_leaves, n_holders = sum(prompt.trie.n_leaves for prompt in prompts), len({prompt.prefix for prompt in prompts})
    n_longest = config.runtime.max_query_tokens
    n_decodes, n_tokens = classifier.templates.size_of_query(n_longest) or (None, None)
    inspected = tuple(_inspected(prompt, prompts, tokenizer, tokenizer.facts.n_layer) for prompt in prompts)
    empty = classifier.check("")
    request = Request(
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
    return Inspection(
        config=None if config.path is None else str(config.path),
        model=classifier.model,
        startup_ms=classifier.startup_ms,
        context=ContextSizes(
            n_ctx=context.n_ctx,
            n_batch=context.n_batch,
            n_outputs_max=context.n_outputs_max,
            n_cells_prefixes=classifier.engine.cache.n_cells,
            cache_bytes=memory.cache_bytes,
            state_bytes=tokenizer.facts.state_bytes,
            compute_bytes=memory.compute_bytes,
            why_no_visible_cells=context.why_no_visible_cells,
            n_holders=n_holders,
            n_leaves=n_leaves,
            max_batch=max_batch,
            n_seq_needed=n_holders + n_leaves * max_batch,
            n_seq_max=context.n_seq_max,
            n_state_seqs=context.n_state_seqs if tokenizer.has_states else 0,
        ),
        request=request,
        costs=_costs(request, inspected),
        prompts=inspected[: len(classifier.prompts)],
        warnings=classifier.warnings,
    )


def _costs(request: Request, prompts: Sequence[PromptInspection]) -> tuple[Cost, ...]:
    """What a usual query feeds, and what it would feed with other texts, in tokens; alternatives that are cheaper."""
    n, labels = len(prompts), sum(prompt.n_tokens_labels for prompt in prompts)
    n_query = COST_QUERY_TOKENS - max(len(prompt.fragment[:1]) for prompt in prompts)  # in place of a space
    now = request.n_tokens + n_query * request.n_query_copies
    heads = n_query + max(prompt.n_added for prompt in prompts)
    other = {
        "with one common text for all prompts": heads + CUE_TOKENS * n + labels if request.n_query_copies > 1 else now,
        "with heads learnt on one common text": heads + n * (n > 1),
        "with labels that differ in their first tokens": now - labels,
    }
    cheaper = {what: n_tokens for what, n_tokens in other.items() if n_tokens < now}
    return tuple(
        Cost(what=what, n_tokens=n_tokens, share=n_tokens / now)
        for what, n_tokens in {"as configured": now, **cheaper}.items()
    )


def _inspected(prompt: Prompt, prompts: Sequence[Prompt], tokenizer: Tokenizer, n_layer: int) -> PromptInspection:
    """A prompt by itself, and what its prefix shares with the others."""
    _, added = prompt.new_tokens(prompt.fragment_tokens(tokenizer, ""))
    n_fragment = len(added) - len(prompt.closing)
    n_cached, _ = prompt.new_tokens(prompt.fragment_tokens(tokenizer, PROBES[0]))
    shared = {other.name: common_prefix(prompt.prefix, other.prefix) for other in prompts if other is not prompt}
    n_shared = max(shared.values(), default=0)
    texts = tuple(Token(token=token, text=_text(tokenizer, token)) for token in added)
    head = None
    if isinstance(prompt.head, Head):
        of_head = {key: getattr(prompt.head, key) for key in ("depth", "text", "reads_labels", "n_rows", "accuracy")}
        head = HeadInspection(n_layer=n_layer, **of_head)
    return PromptInspection(
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
        labels=label_tree(prompt, tokenizer),
    )


def label_tree(prompt: Prompt, tokenizer: Tokenizer) -> LabelNode:
    """The tokens that may follow a prompt, up to the labels' ends."""
    nodes = {edge: node for node, edge in enumerate(prompt.trie.fed, 1)}
    ways = []
    for label, tokens, edges in zip(prompt.labels, prompt.label_tokens, prompt.trie.label_edges, strict=True):
        is_beginning = any(len(other) > len(tokens) and other[: len(tokens)] == tokens for other in prompt.label_tokens)
        # such a label ends at a fork, so that its last edge is the one of its end token
        ways.append((label, (*tokens, prompt.trie.edges[edges[-1]].token) if is_beginning else tokens))

    def grow(several: Sequence[tuple[str, tuple[int, ...]]], depth: int, node: int) -> LabelNode:
        following: dict[int, list[tuple[str, tuple[int, ...]]]] = {}
        for label, way in several:
            if len(way) > depth:
                following.setdefault(way[depth], []).append((label, way))
        return LabelNode(
            text=_text(tokenizer, several[0][1][depth - 1]) if depth else "",
            label=next((label for label, way in several if len(way) == depth), None),
            fed=node > 0,
            children=tuple(grow(below, depth + 1, nodes.get((node, token), -1)) for token, below in following.items()),
        )

    return grow(ways, 0, 0)


def _text(tokenizer: Tokenizer, token: int) -> str:
    """The text of a token; bytes that are no whole character become escapes such as \\xe7."""
    return tokenizer.piece(token)[0].decode(errors="backslashreplace")


def show_prompts(classifier: Classifier, names: Sequence[str], query: str) -> ShownPrompts:
    """The prompts of some names, all if none is given. Raises ConfigError for another name, PlanError for the query."""
    chosen = {prompt.name for prompt in chosen_prompts(classifier.config, names)}
    classifier.check(query)
    prompts = tuple(
        _shown_prompt(prompt, classifier.engine.model, classifier.core.as_read(query))
        for prompt in classifier.compiled.prompts
        if prompt.name in chosen
    )
    return ShownPrompts(query=query, prompts=prompts, warnings=classifier.warnings)


def _shown_prompt(prompt: Prompt, tokenizer: Tokenizer, query: str) -> ShownPrompt:
    n_cached, fed = prompt.new_tokens(prompt.fragment_tokens(tokenizer, query))
    tokens = [*prompt.prefix[:n_cached], *fed]
    template = (prompt.head and prompt.head.text) or prompt.settings.expanded_template
    return ShownPrompt(
        name=prompt.name,
        text=template.replace(SLOT, query),
        fast_path=n_cached == len(prompt.prefix),
        n_cached=n_cached,
        n_fed=len(fed),
        tokens=tuple(
            ShownToken(
                token=token,
                text=_text(tokenizer, token),
                is_control=tokenizer.piece(token)[1],
                is_cached=place < n_cached,
            )
            for place, token in enumerate(tokens)
        ),
        labels=label_tree(prompt, tokenizer),
    )
