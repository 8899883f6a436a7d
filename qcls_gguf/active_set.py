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


Item = tuple[ActiveSet, str]
"""A prompt set, and the query that it is asked."""
