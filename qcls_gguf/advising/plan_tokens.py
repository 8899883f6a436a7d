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
    """tokens that each decode feeds"""

    @property
    def n_tokens(self) -> int:
        """Tokens that it feeds."""
        return sum(self.decodes)


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
        found.append(PlannedRequest(decodes=tuple(decode.plan.n_tokens for decode in decodes)))
    return found
