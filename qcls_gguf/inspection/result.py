"""What an inspection returns: a tree of plain values."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..config.scoring import Scoring
from ..score.result import ModelInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token and its text; bytes that are no whole character are shown as escapes."""

    token: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """The tokens of a prompt that are cached at start-up."""

    n_tokens: int
    block_hashes: tuple[str, ...]
    """a hash for every 16 tokens; see `inspection.block_hashes`"""
    n_shared: int
    """the longest beginning that another prompt has too"""
    shared_with: tuple[str, ...]
    """the prompts that have it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """The tokens that a prompt adds to every request, even for an empty query; those of its labels not counted."""

    n_tokens: int
    fragment: tuple[Token, ...]
    """text around the query that is tokenised with it, and so is not cached"""
    suffix: tuple[Token, ...]
    """text behind that"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelTokens:
    """One label's tokens; `end` is the end-of-label token of a label that another one begins with."""

    label: str
    tokens: tuple[Token, ...]
    end: Token | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrieNode:
    """A node of a label trie. The root stands for the prompt's last token: its token is None and its text empty."""

    token: int | None
    text: str
    label: str | None
    """the label that ends here"""
    fed: bool
    """whether a request feeds it; the root is fed as part of the prompt"""
    read: bool
    """whether scores read its hidden state"""
    children: tuple[TrieNode, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptInspection:
    """One prompt."""

    name: str
    scoring: Scoring
    fast_path: bool
    """whether a usual query leaves the cached prefix as it is"""
    prefix: Prefix
    added: Added
    n_tokens_labels: int
    """tokens that a request feeds for the labels of several tokens, in this scoring"""
    n_positions: int
    """hidden states that the scores read"""
    n_leaves: int
    """sequences that one query needs"""
    labels: tuple[LabelTokens, ...]
    trie: TrieNode


@dataclass(frozen=True, slots=True, kw_only=True)
class Answering:
    """How a prompt's scores become its probabilities and its answer; temperature 1 and nothing else changes neither."""

    prompt: str
    temperature: float
    prior: dict[str, float] | None
    """by label, as computed from content-free queries"""
    bias: dict[str, float] | None
    """by label, as calibrated"""
    min_confidence: float | None
    fallback: str | None
    """the answer where the best label is less probable than min_confidence"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What an empty query feeds for all prompts together; a query's own tokens come on top, n_query_copies times."""

    n_decodes: int
    n_tokens: int
    n_tokens_fragment: int
    n_tokens_suffix: int
    n_tokens_labels: int
    """of one tree over all prompts, as are the two before; they add up to n_tokens where n_decodes is 1"""
    n_tokens_unshared: int
    """with every prompt on its own"""
    n_tokens_one_text: int
    """with one text for all prompts, the longest of today's, that ends in each prompt's name and a colon"""
    n_tokens_cached: int
    n_positions: int
    n_query_copies: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """How many of llama.cpp's sequences are used: n_needed = n_holders + n_leaves * max_batch, at most n_limit."""

    n_holders: int
    """distinct prefixes"""
    n_leaves: int
    """for one query, over all prompts"""
    max_batch: int
    n_needed: int
    n_seq_max: int
    n_limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSizes:
    """The context's limits, and the cells that the prefixes occupy; equal beginnings are stored once."""

    n_ctx: int
    n_batch: int
    n_outputs_max: int
    n_cells_prefixes: int
    why_no_visible_cells: str | None
    """why a token's attention reads every used cell; none where it reads only the cells that it may see"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A sentence on what could be cheaper or clearer, and the prompts it is about."""

    kind: str
    """reorder, suffix, sequences, collision, missing or alike"""
    prompts: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """Everything that `qcls-gguf inspect` shows."""

    config: str | None
    model: ModelInfo
    startup_ms: dict[str, float]
    context: ContextSizes
    sequences: Sequences
    request: Request
    prompts: tuple[PromptInspection, ...]
    answering: tuple[Answering, ...]
    """by prompt"""
    advice: tuple[Advice, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `qcls-gguf inspect --format json` prints them."""
        return asdict(self)
