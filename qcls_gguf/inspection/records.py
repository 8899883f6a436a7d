"""The records of an inspection: what `qcls-gguf inspect` prints as JSON, with costs or with what the model reads."""

from __future__ import annotations

from ..config.prompt import LikelyMistake
from ..config.scoring import Scoring
from ..report.record import Record, left_out_if_none
from ..score.result import ModelInfo


class Token(Record):
    """A token and its text."""

    token: int
    """its id"""
    text: str
    """bytes that are no whole character are shown as escapes"""


class Prefix(Record):
    """The tokens of a prompt that are cached at start-up."""

    n_tokens: int
    """its length"""
    n_shared: int
    """tokens of the longest beginning that another prompt has too"""
    shared_with: tuple[str, ...]
    """names of the prompts that have it"""


class AddedTokens(Record):
    """The tokens that a prompt adds to every request, even to an empty query; without those of its labels."""

    n_tokens: int
    """fragment and suffix together"""
    fragment: tuple[Token, ...]
    """text around the query that is tokenised with it, and so is not cached"""
    suffix: tuple[Token, ...]
    """text after that"""


class LabelTokens(Record):
    """One label's tokens."""

    label: str
    """the text of the label"""
    tokens: tuple[Token, ...]
    """the tokens that follow the prompt"""
    end: Token | None
    """the end-of-label token, of a label that another one begins with"""


class TrieNode(Record):
    """A node of a label trie. The root is the end of the prompt."""

    token: int | None
    """null for the root"""
    text: str
    """empty for the root"""
    label: str | None
    """the label that ends here"""
    fed: bool
    """whether a request feeds it; the root is fed as part of the prompt"""
    read: bool
    """whether scores read its hidden state"""
    children: tuple[TrieNode, ...]
    """the nodes that follow it"""


class HeadInspection(Record):
    """The learnt head that answers a prompt instead of its labels' texts."""

    depth: int
    """the layers after which it reads the hidden state"""
    n_layer: int
    """of the model"""
    text: str | None
    """the text that it reads instead of the prompt's own"""
    reads_labels: bool
    """whether it stands beside the labels' texts"""
    n_rows: int | None
    """labelled rows that it was learnt from; null where the file does not say, as below"""
    accuracy: float | None
    """on rows that were left out while it was learnt"""


class PromptInspection(Record):
    """What one prompt costs."""

    name: str
    """the prompt's name"""
    scoring: Scoring
    """as configured"""
    head: HeadInspection | None = left_out_if_none()
    fast_path: bool
    """whether a usual query leaves the cached prefix unchanged"""
    prefix: Prefix
    added: AddedTokens
    n_tokens_labels: int
    """tokens that a request feeds to tell labels of several tokens apart, in this scoring"""
    n_positions: int
    """hidden states that the scores read"""
    n_leaves: int
    """sequences that one query needs"""
    labels: tuple[LabelTokens, ...]
    """in the order of the configuration"""
    trie: TrieNode


class Request(Record):
    """What a request with an empty query feeds for all prompts together."""

    n_decodes: int
    """decodes of the request"""
    n_tokens: int
    """tokens that prompts share count once; those that are fed again in another decode count again"""
    n_tokens_unshared: int
    """with every prompt by itself: what the prompts add, and their labels of several tokens"""
    n_tokens_cached: int
    """tokens of the rendered prompts that come from the cache"""
    n_positions: int
    """hidden states that the scores read"""
    n_query_copies: int
    """how many times each token of a query is fed"""


class Cost(Record):
    """What a request with a query of 6 tokens feeds, as configured or in another way; computed, not measured."""

    what: str
    """as configured, or what would be different"""
    n_tokens: int
    """that the request feeds"""
    share: float
    """of the tokens of the request as configured: about its share of the time where many tokens are fed"""


class LongestQuery(Record):
    """What a request with the longest query takes."""

    n_query_tokens: int
    """tokens of that query (max_query_tokens)"""
    n_tokens: int
    """that the request feeds"""
    n_decodes: int
    """of the request"""


class Sequences(Record):
    """How many of llama.cpp's sequences are used."""

    n_holders: int
    """distinct prefixes, each in a sequence of its own"""
    n_leaves: int
    """of all label tries, for one query"""
    max_batch: int
    """queries of a request at most"""
    n_needed: int
    """n_holders + n_leaves * max_batch"""
    n_seq_max: int
    """sequences that the context has"""
    n_state_seqs: int
    """of them those that keep states of recurrent layers, for prefixes; 0 where the model has none"""
    n_limit: int
    """the largest number that llama.cpp supports"""


class ContextSizes(Record):
    """The context's limits, and what the prefixes take of it."""

    n_ctx: int
    """cells of the KV cache"""
    n_batch: int
    """tokens of one decode at most"""
    n_outputs_max: int
    """hidden states that one decode returns at most"""
    n_cells_prefixes: int
    """cells of the prefixes; equal beginnings are stored once"""
    cache_bytes: int
    """memory of the KV cache, on all devices, with all states of recurrent layers"""
    state_bytes: int
    """what recurrent layers keep of each sequence that keeps a state, used or not; 0 where the model has none"""
    compute_bytes: int
    """compute buffers for the largest decode, on all devices"""
    graphs_bytes: int
    """compute buffers of the graphs that the start-up built; other queries add theirs, up to n_shapes graphs"""
    why_no_visible_cells: str | None
    """why a token's attention reads every used cell; null where it reads only the cells that it may see"""


class Inspection(Record):
    """What a configuration costs with a model, before any query."""

    config: str | None
    """the configuration's file"""
    model: ModelInfo
    instruction_sets: tuple[str, ...]
    """that the code for the CPU was compiled for, such as AVX2 or AMX_INT8"""
    startup_ms: dict[str, float]
    """by step of the start-up"""
    context: ContextSizes
    sequences: Sequences
    request: Request
    costs: tuple[Cost, ...]
    """as configured first, then what would feed less: a common text for all prompts, learned heads, shorter labels"""
    longest: LongestQuery | None
    """null where prompts with one cached prefix have other texts around the query, so that lengths alone do not tell"""
    prompts: tuple[PromptInspection, ...]
    """in the order of the configuration"""
    warnings: tuple[LikelyMistake, ...]
    """what is likely a mistake in the prompts"""


class ShownToken(Token):
    """A token of a prompt."""

    is_control: bool
    """whether it is a control token, or another mark of the vocabulary that only a template may hold"""
    is_cached: bool
    """whether it was computed at start-up; the others are fed with the query"""


class ShownPart(Record):
    """Text of consecutive tokens of one kind."""

    text: str
    """bytes that are no whole character are shown as escapes"""
    is_control: bool
    """whether they are control tokens"""
    is_cached: bool
    """whether they were computed at start-up"""


class ShownPrompt(Record):
    """A prompt with a query, as the model reads it."""

    name: str
    """the prompt's name"""
    text: str
    """the whole text, by the chat template where it was given as system and user"""
    parts: tuple[ShownPart, ...]
    """the same text by kinds of tokens, with what the tokenizer adds, such as a beginning token"""
    fast_path: bool
    """false where the query changes tokens of the cached prefix, which are fed anew"""
    n_cached: int
    """tokens that are cached"""
    n_fed: int
    """tokens that the query's request feeds, without those of labels"""
    tokens: tuple[ShownToken, ...]
    """all of them, in order"""
    labels: TrieNode
    """the label trie: what may follow the last token"""


class ShownPrompts(Record):
    """Prompts with a query, as the model reads them."""

    query: str
    """the query in its slot"""
    prompts: tuple[ShownPrompt, ...]
    """the prompts that were asked for"""
    warnings: tuple[LikelyMistake, ...]
    """what is likely a mistake in all prompts of the configuration"""
