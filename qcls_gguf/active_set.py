"""A prompt set on an engine, with all that answering it needs."""

from __future__ import annotations

from collections.abc import Sequence

from .engine.engine import Engine
from .engine.prefix_cache import Prefix
from .native import TrieScores
from .plan.templates import Templates
from .plan.tree import Int32Array
from .prompts.prompt_set import PromptSet
from .score.answers import Answers
from .score.scorer import Scorer
from .score.tail import Tail

_BYTES_PER_TOKEN = 4
_N_LONG = 8


def n_tokens_of(n_bytes: int) -> int:
    """About how many tokens a text of so many bytes has."""
    return -(-n_bytes // _BYTES_PER_TOKEN)


def n_query_tokens(query: str) -> int:
    """About how many tokens a query has."""
    return n_tokens_of(len(query.encode("utf-8", "replace")))


class ActiveSet:
    """A prompt set on an engine: its prefixes are pinned, its label rows, plans and answers are at hand."""

    def __init__(self, prompts: PromptSet, engine: Engine, held: Sequence[Prefix], label_tokens: Int32Array) -> None:
        """held: the prefixes of the prompts, in their order; label_tokens: of which the engine's rows carry logits."""
        self.prompts = prompts
        self.held = held
        self.holders = [prefix.holder for prefix in held]
        self.templates = Templates(prompts, self.holders, engine.capacity, engine.model.facts.n_vocab)
        tokens = prompts.label_tokens.tolist()
        tail = engine.context.head_tail
        self.scorer = Scorer(
            [prompt.trie for prompt in prompts.prompts],
            engine.model.rows(tokens),
            label_tokens if prompts.exact else None,
            tail=Tail(
                scale=tail.scale, cap=tail.cap, bias=engine.model.output_biases(tokens) if tail.has_bias else None
            ),
            arithmetic=TrieScores,
        )
        self.answers = Answers(prompts.prompts, prompts.settings, self.scorer)
        self.n_prefixes = len(set(prompts.prefixes))
        self.n_edges = sum(len(prompt.trie.edges) for prompt in prompts.prompts)
        self.is_open = True
        self._fed: tuple[int, float] | None = None  # (tokens that an empty query feeds, more for each token)

    def n_fed(self, query: str) -> int:
        """About how many tokens a query feeds."""
        if self._fed is None:
            self._fed = self._sizes()
        n_fixed, per_token = self._fed
        return n_fixed + int(per_token * n_query_tokens(query))

    def _sizes(self) -> tuple[int, float]:
        short, long = (self.templates.size_of_query(n) for n in (0, _N_LONG))
        if short and long:
            return short[1], (long[1] - short[1]) / _N_LONG
        n_prompts = len(self.prompts.prompts)
        return sum(len(prompt.tail) + len(prompt.trie.fed) for prompt in self.prompts.prompts), float(n_prompts)


Item = tuple[ActiveSet, str]
"""A prompt set, and the query that it is asked."""
