"""What a request feeds, from the planner: nothing is decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..plan.planner import Capacity, additions_of, plan_decodes
from ..prompts.compiled import Tokenizer
from ..prompts.prompt_set import PromptSet


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """One query's request."""

    decodes: tuple[int, ...]
    """tokens that each decode feeds; of a model with states, each pass over its weights, in equal parts"""
    pass_tokens: int = 0
    """tokens that one more pass is counted as, of a model with states"""

    @property
    def n_tokens(self) -> int:
        """Tokens that it feeds."""
        return sum(self.decodes)

    @property
    def cost(self) -> int:
        """In tokens, the passes of a model with states counted as some."""
        return self.n_tokens + self.pass_tokens * len(self.decodes)


def planned_requests(
    prompts: PromptSet, tokenizer: Tokenizer, queries: Sequence[str], capacity: Capacity
) -> list[PlannedRequest]:
    """The requests of single queries. Raises PlanError for a query that leaves nothing to feed."""
    sequence = {prefix: index for index, prefix in enumerate(dict.fromkeys(prompts.prefixes))}
    holders = [sequence[prefix] for prefix in prompts.prefixes]
    found = []
    for query in queries:
        tokens = {
            (before, after): tokenizer.tokenize(before + query + after, parse_special=False).tolist()
            for before, after in prompts.fragments
        }
        additions = additions_of(prompts.prompts, holders, [tokens[prompt.fragment] for prompt in prompts.prompts])
        decodes = plan_decodes(additions, capacity)
        passes = tuple(n for decode in decodes for n in _parts(decode.plan.n_tokens, decode.n_passes))
        found.append(PlannedRequest(decodes=passes, pass_tokens=capacity.pass_tokens or 0))
    return found


def _parts(n_tokens: int, n_passes: int) -> list[int]:
    return [(n_tokens + i) // n_passes for i in range(n_passes)]
