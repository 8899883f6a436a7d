"""The records of an inspection: what `qcls-gguf inspect` prints as JSON: costs, or what the model reads."""

from __future__ import annotations

from pydantic import Field

from ..config.prompt import LikelyMistake
from ..config.scoring import Scoring
from ..report.record import Record, left_out_if_none
from ..score.result import ModelInfo

_WARNINGS = Field(description="what is likely a mistake in the prompts of the configuration")


class Token(Record):
    """A token and its text."""

    token: int = Field(description="its id")
    text: str = Field(description="bytes that are no whole character are shown as escapes")


class LabelTokens(Record):
    """A label as the model would write it."""

    label: str = Field(description="its text")
    tokens: tuple[Token, ...] = Field(description="with its end-of-label token, if another label begins with it")
    n_fed: int = Field(description="of these, from the first on, those that a request feeds to tell labels apart")


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
    labels: tuple[LabelTokens, ...] = Field(description="in the order of the configuration")


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
    compute_bytes: int = Field(description="compute buffers for the largest decode, on all devices")
    graphs_bytes: int = Field(description="compute buffers of the graphs that the start-up built; other queries add")
    why_no_visible_cells: str | None = Field(description="why a token's attention reads every used cell; or null")
    n_holders: int = Field(description="distinct prefixes, which have a sequence of their own")
    n_leaves: int = Field(description="sequences of all label tries, for one query")
    max_batch: int = Field(description="queries of a request at most")
    n_seq_needed: int = Field(description="n_holders + n_leaves * max_batch")
    n_seq_max: int = Field(description="sequences that the context has")
    n_state_seqs: int = Field(description="of them those that keep states of recurrent layers; 0 where there are none")
    n_seq_limit: int = Field(description="the largest number that llama.cpp supports")


class Inspection(Record):
    """What a configuration costs with a model, before any query."""

    config: str | None = Field(description="the configuration's file")
    model: ModelInfo
    stock_types: dict[str, float] = Field(description="types of weights for llama.cpp's own kernels, by their share")
    instruction_sets: tuple[str, ...] = Field(description="that the code for the CPU was compiled for, such as AVX2")
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
    labels: tuple[LabelTokens, ...] = Field(description="what may follow the last token")


class ShownPrompts(Record):
    """Prompts with a query, as the model reads them."""

    query: str = Field(description="the query in its slot")
    prompts: tuple[ShownPrompt, ...] = Field(description="the prompts that were asked for")
    warnings: tuple[LikelyMistake, ...] = _WARNINGS
