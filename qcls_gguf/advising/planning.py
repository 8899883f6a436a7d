"""Which candidates are worth trying: those that this model and engine can have, and that feed less."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from ..config.schema import Config, RuntimeConfig
from ..engine.capacity import check_capacity, limits
from ..errors import ConfigError, PlanError
from ..model import Model
from ..plan.planner import Capacity
from ..prompts.prompt_set import PromptSet, compile_prompts
from .candidate import Candidate
from .plan_tokens import PlannedRequest, planned_requests

_N_PLANNED = 200
"""Queries whose requests are planned; more would tell no more of the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A candidate with what its requests feed."""

    candidate: Candidate
    prompts: PromptSet
    requests: tuple[PlannedRequest, ...]
    n_more_prefix_tokens: int = 0
    """of other stages, where it is a cascade"""

    @property
    def n_tokens(self) -> float:
        """Tokens of a request, on average."""
        return fmean(request.n_tokens for request in self.requests)

    @property
    def cost(self) -> float:
        """Of a request in tokens, on average; see PlannedRequest."""
        return fmean(request.cost for request in self.requests)

    @property
    def n_decodes(self) -> float:
        """Decodes of a request, on average."""
        return fmean(len(request.decodes) for request in self.requests)

    @property
    def n_prefix_tokens(self) -> int:
        """Cells that its prefixes take, shared beginnings counted once for each prefix."""
        return sum(map(len, set(self.prompts.prefixes))) + self.n_more_prefix_tokens


class Planner:
    """Plans candidates for a model, with the engine that the original configuration would have."""

    def __init__(self, config: Config, model: Model, queries: Sequence[str]) -> None:
        """config: the original one, with whole texts. Raises ConfigError where the model cannot have it."""
        self._config, self._model, self._queries = config, model, queries[:_N_PLANNED]
        prompts = compile_prompts(config.prompts, model)
        found = limits(config.runtime, prompts, model.facts.n_ctx_train, model.n_ctx_short, model.facts.state_bytes)
        self._capacity = Capacity(
            n_seqs=found.n_leaf_seqs,
            n_tokens=found.n_batch,
            n_rows=found.n_outputs_max,
            pass_tokens=model.pass_tokens,
        )

    @property
    def n_planned(self) -> int:
        """Queries whose requests are planned."""
        return len(self._queries)

    def requests(self, prompts: PromptSet, queries: Sequence[str] | None = None) -> list[PlannedRequest]:
        """What a prompt set feeds for these queries, or for those that are always planned. Raises PlanError."""
        chosen = self._queries if queries is None else queries
        return planned_requests(prompts, self._model, chosen, self._capacity)

    def plan(self, candidate: Candidate) -> Planned:
        """What its requests feed. Raises ConfigError or PlanError where this model or engine cannot have it."""
        prompts = compile_prompts(candidate.config.prompts, self._model)
        check_capacity(prompts, self._capacity, self._config.runtime.max_query_tokens, self._model.facts.n_ctx_train)
        return Planned(candidate=candidate, prompts=prompts, requests=tuple(self.requests(prompts)))


@dataclass(frozen=True, slots=True, kw_only=True)
class NotTried:
    """A candidate that is not tried."""

    candidate: Candidate
    n_tokens: float | None
    reason: str


def worth_trying(
    planner: Planner, candidates: Sequence[Candidate], whole: Planned | None
) -> tuple[list[Planned], list[NotTried]]:
    """The candidates whose requests cost less than the original's, least first, and the others.

    whole: the original; none: a candidate may cost anything.
    """
    found, others = [], []
    for candidate in candidates:
        try:
            planned = planner.plan(candidate)
        except (ConfigError, PlanError) as e:
            others.append(NotTried(candidate=candidate, n_tokens=None, reason=str(e)))
            continue
        if whole is None or planned.cost < whole.cost:
            found.append(planned)
        else:
            reason = f"feeds {_fed(planned)} a request, the original {_fed(whole, unit='')}"
            others.append(NotTried(candidate=candidate, n_tokens=planned.n_tokens, reason=reason))
    return sorted(found, key=lambda each: each.cost), others


def _fed(planned: Planned, unit: str = " tokens") -> str:
    in_passes = f" in {planned.n_decodes:.1f} passes" if planned.cost > planned.n_tokens else ""
    return f"{planned.n_tokens:.1f}{unit}{in_passes}"


def with_room(runtime: RuntimeConfig, planned: Sequence[Planned]) -> RuntimeConfig:
    """The runtime settings with room for the prefixes of all these beside the configuration's; n_ctx stays as given.

    Queries are not kept, which only those of configured prompts could be.
    """
    runtime = dataclasses.replace(runtime, kept_queries=0)
    n_cells = sum(each.n_prefix_tokens for each in planned)
    n_prefixes = sum(len(set(each.prompts.prefixes)) for each in planned)
    if runtime.n_ctx != "auto" or runtime.n_seq_max != "auto":
        return runtime
    return dataclasses.replace(runtime, question_cells=n_cells, question_prefixes=n_prefixes)
