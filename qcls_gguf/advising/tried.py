"""Candidates on one model: tried on the queries one after the other, parted where that helps, and timed in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field

from ..classifier import Classifier
from ..config.schema import Config
from ..config.words import counted
from ..errors import ConfigError, PlanError
from ..evaluation.kept_scores import KeptScores
from ..loaded_prompts import LoadedPrompts
from ..report.numbers import percent
from ..report.progress import OnProgress, counter
from .candidate import Candidate
from .joint import parted
from .latency import times_in_turns
from .planning import Planned, Planner
from .records import State
from .trial import Row, Rule, ask_all, parted_rows, try_candidate

Keep = Callable[[Config, Classifier], AbstractContextManager[KeptScores | None]]
"""where the answers of a configuration are kept"""


@dataclass(slots=True, kw_only=True)
class Tried:
    """A candidate, and what became of it."""

    candidate: Candidate
    planned: Planned | None
    state: State
    note: str | None = None
    rows: tuple[Row, ...] = ()
    """its answers"""
    worse: tuple[str, ...] = ()
    """prompts that are clearly worse than the limit"""
    model_name: str
    ms: list[float] = field(default_factory=list)
    """times of its requests"""
    original_ms: list[float] = field(default_factory=list)
    """of the original's, in turns with these"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all candidates of a model are tried with."""

    classifier: Classifier
    model_name: str
    queries: Sequence[str]
    original: Sequence[Row]
    """the original configuration's answers"""
    limit: float
    """least agreement of a candidate that is recommended"""
    drop_limit: float
    """least agreement of one that is not dropped early"""
    level: float
    keep: Keep
    on_progress: OnProgress

    def try_one(self, planned: Planned, *, may_part: bool) -> Tried:
        """Ask the queries, until all are asked or the candidate is clearly worse than the limit."""
        candidate = planned.candidate
        label = f"{candidate.name}, {self.model_name}"
        on_row = counter(self.on_progress, label, len(self.queries))
        rule = Rule(
            limit=self.drop_limit,
            level=self.level,
            least_prompts=2 if may_part and candidate.can_part else len(candidate.config.prompts),
        )
        try:
            with (
                self.classifier.prompt_set(planned.prompts) as prompts,
                self.keep(candidate.config, self.classifier) as kept,
            ):
                trial = try_candidate(ask_all(prompts, self.queries, kept, on_row), self.original, rule)
        except (ConfigError, PlanError) as e:
            return Tried(
                candidate=candidate, planned=planned, state="not tried", note=str(e), model_name=self.model_name
            )
        self.on_progress(label, len(self.queries), len(self.queries))
        note = None
        if not trial.complete:
            asked = counted(len(trial.rows), "query", "queries")
            note = f"after {asked} clearly below {percent(self.drop_limit)} for {', '.join(trial.worse)}"
        return Tried(
            candidate=candidate,
            planned=planned,
            state="tried" if trial.complete else "dropped",
            note=note,
            rows=trial.rows,
            worse=trial.worse,
            model_name=self.model_name,
        )

    def losers(self, tried: Tried) -> list[str]:
        """The prompts that answer otherwise more often than the limit allows."""
        found = []
        for prompt in tried.candidate.config.prompts:
            pairs = [
                (first[prompt.name], second[prompt.name])
                for first, second in zip(self.original, tried.rows, strict=False)
                if first is not None and second is not None
            ]
            n_agree = sum(int(first.argmax() == second.argmax()) for first, second in pairs)
            if n_agree < self.limit * len(pairs):
                found.append(prompt.name)
        return found

    def part(self, original: Config, tried: Tried, planner: Planner, whole: Planned) -> Tried | None:
        """The candidate with the original text for the prompts that lose, where others remain and a request costs less.

        Nothing is asked again: each prompt's answers are known. whole: the original.
        """
        losers = self.losers(tried)
        n_left = len(original.prompts) - len(losers)
        if tried.state != "tried" or not tried.candidate.can_part or not losers or n_left < 2:
            return None
        candidate = parted(original, tried.candidate, losers)
        try:
            planned = planner.plan(candidate)
        except (ConfigError, PlanError):
            return None
        if planned.cost >= whole.cost:
            return None
        rows = parted_rows(self.original, tried.rows, losers)
        return Tried(
            candidate=candidate,
            planned=planned,
            state="tried",
            rows=rows,
            model_name=self.model_name,
        )

    def time(self, tried: Sequence[Tried], first: Tried | None, beside: LoadedPrompts, queries: Sequence[str]) -> None:
        """Time those that were tried to the end, in turns with the original; first: the original, where it counts."""
        with ExitStack() as stack:
            sets = {"": beside}
            by_name = {each.candidate.name: each for each in tried if each.state == "tried" and each.planned}
            for name, each in by_name.items():
                assert each.planned is not None
                try:
                    sets[name] = stack.enter_context(self.classifier.prompt_set(each.planned.prompts))
                except (ConfigError, PlanError) as e:
                    each.note = f"not timed: {e}"
            on_query = counter(self.on_progress, f"time {self.model_name}", len(queries))
            found = times_in_turns(sets, queries, on_query)
        if first is not None:
            by_name[""] = first
        for name, each in by_name.items():
            each.ms, each.original_ms = found.get(name, []), found[""]
