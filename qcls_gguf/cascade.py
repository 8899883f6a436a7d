"""Stages that are asked one after the other: a prompt goes on, alone, where a stage is not sure of its answer."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from .active_set import ActiveSet, Item
from .config.calibration_file import prompt_hash
from .config.cascade import AGAIN, CascadeStage, other_prompts, short, stage_hash
from .config.load import load_config
from .config.schema import Config
from .config.settings import prefixed
from .errors import ConfigError
from .loaded_prompts import LoadedPrompts
from .requests import Requests
from .score.result import Counts, ModelInfo, PromptResult, Result

Ask = Callable[[Sequence[Item], float | None], list[Result]]
AskAsync = Callable[[Sequence[Item], float | None], Coroutine[Any, Any, list[Result]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage of a cascade, ready for queries."""

    name: str
    """what answers say of where they come from"""
    whole: ActiveSet
    """all prompts that it is asked"""
    single: Mapping[str, ActiveSet]
    """each of them alone, calibrated alike; the first stage needs none"""
    thresholds: Mapping[str, float]
    """least probability of an answer that counts, by prompt; of the last stage every answer counts"""
    model: ModelInfo
    """which model answers"""
    ask: Ask
    ask_async: AskAsync

    def items(self, query: str, names: Sequence[str]) -> list[Item]:
        """What is asked for some prompts of a query: the whole set where these are all of its prompts."""
        mine = [prompt.name for prompt in self.whole.prompts.prompts]
        asked = [name for name in mine if name in names]
        if asked == mine:
            return [(self.whole, query)]
        return [(self.single[name], query) for name in asked]

    def counts(self, answer: PromptResult) -> bool:
        """Whether an answer is final."""
        return answer.probability >= self.thresholds.get(answer.prompt, 0.0)


Step = Generator[tuple[Stage, list[Item]], list[Result], list[Result]]


def cascade_steps(stages: Sequence[Stage], queries: Sequence[str]) -> Step:
    """Asks the stages one after the other: yields what a stage is asked, is sent its answers, returns the results.

    stages: the last one answers every prompt. The results have the last stage's model, the prompts in its order, and
    the times and counts of all stages together.
    """
    names = [prompt.name for prompt in stages[-1].whole.prompts.prompts]
    found: list[dict[str, PromptResult]] = [{} for _ in queries]
    asked: list[list[Result]] = []
    for index, stage in enumerate(stages):
        is_last = index == len(stages) - 1
        owners: list[int] = []
        items: list[Item] = []
        for owner, query in enumerate(queries):
            of_query = stage.items(query, [name for name in names if name not in found[owner]])
            items += of_query
            owners += [owner] * len(of_query)
        if not items:
            continue
        results = yield stage, items
        asked.append(results)
        for owner, result in zip(owners, results, strict=True):
            for answer in result.results:
                if is_last or stage.counts(answer):
                    found[owner][answer.prompt] = answer._replace(stage=stage.name)
    model = stages[-1].model
    return [
        _result(query, [of_query[name] for name in names], asked, len(queries), model)
        for query, of_query in zip(queries, found, strict=True)
    ]


def _result(
    query: str,
    answers: Sequence[PromptResult],
    asked: Sequence[Sequence[Result]],
    n_queries: int,
    model: ModelInfo,
) -> Result:
    """One query's answers, with what all calls took together; a call's results all have the call's times and counts."""
    calls = [results[0] for results in asked]
    return Result(
        query=query,
        total_ms=sum(call.total_ms for call in calls),
        stage_ms={name: sum(call.stage_ms[name] for call in calls) for name in calls[0].stage_ms},
        counts=Counts(
            n_queries=n_queries,
            n_decodes=sum(call.counts.n_decodes for call in calls),
            n_tokens_new=sum(call.counts.n_tokens_new for call in calls),
            n_tokens_cached=sum(call.counts.n_tokens_cached for call in calls),
            n_positions=sum(call.counts.n_positions for call in calls),
        ),
        results=tuple(answers),
        model=model,
        wait_ms=sum(call.wait_ms for call in calls),
    )


def stage_config(setting: CascadeStage, last: Config, place: str) -> Config:
    """The configuration of a stage, which never abstains, and takes the queries that the last one takes.

    place: where it stands, for errors. Raises ConfigError where its prompts are not the last one's.
    """
    try:
        config = load_config(setting.config)
    except ConfigError as e:
        raise prefixed(f"{place}.config", e) from None
    unknown = [name for name in setting.prompts if name not in {prompt.name for prompt in last.prompts}]
    why = f"prompts.{unknown[0]} is no prompt of the configuration" if unknown else None
    if why := why or other_prompts(last.prompts, config.prompts):
        raise ConfigError(f"{place}: {setting.config}: {why}")
    limits = {key: getattr(last.runtime, key) for key in ("max_query_tokens", "max_query_bytes", "max_waiting")}
    return replace(
        config,
        prompts=tuple(replace(prompt, min_confidence=None, fallback=None) for prompt in config.prompts),
        runtime=replace(config.runtime, **limits),
        cascade=None,
    )


def stamps(loaded: LoadedPrompts) -> dict[str, str]:
    """A digest by prompt of all that its probabilities depend on beside the model."""
    return {
        prompt.name: stage_hash(
            prompt_hash(prompt), adjustment.temperature, None if adjustment.bias is None else adjustment.bias.tolist()
        )
        for prompt, adjustment in zip(loaded.active.prompts.settings, loaded.adjustments, strict=True)
    }


def check_stamps(
    place: str, hashes: Mapping[str, str], model_sha256: str, loaded: LoadedPrompts, model: ModelInfo
) -> None:
    """Raise ConfigError where a model or prompts are not those that thresholds were fitted to."""
    if model.sha256 != model_sha256:
        raise ConfigError(
            f"{place}: its thresholds were fitted with the model of sha256 {short(model_sha256)}, this one is "
            f"{short(model.sha256)}: {AGAIN}"
        )
    now = stamps(loaded)
    for name, fitted in hashes.items():
        if fitted != now.get(name):
            raise ConfigError(
                f"{place}: the threshold of prompt {name} was fitted to the prompt of hash {short(fitted)}, it is "
                f"{short(now.get(name, 'none'))} now (template, labels, scoring, prior, calibration): {AGAIN}"
            )


class CascadeRequests(Requests):
    """Requests to an engine whose configured prompts are the last stage of a cascade."""

    stages: Sequence[Stage] = ()
    """the last is the configured prompts; none until all are ready. Other prompt sets are asked as they are"""

    @property
    def has_steps(self) -> bool:
        """Whether there is one stage only."""
        return not self.stages

    def ask(self, items: Sequence[Item], deadline_s: float | None = None) -> list[Result]:
        """As Requests does, but what the configured prompts are asked goes through the stages."""
        if not self._is_cascade(items):
            return super().ask(items, deadline_s)
        self._check(items, deadline_s)
        ends = _End(deadline_s)
        steps = cascade_steps(self.stages, [query for _, query in items])
        stage, asked = next(steps)
        while True:
            try:
                stage, asked = steps.send(stage.ask(asked, ends.left_s))
            except StopIteration as e:
                return list(e.value)

    async def ask_async(self, items: Sequence[Item], deadline_s: float | None = None) -> list[Result]:
        """The same without blocking the event loop."""
        if not self._is_cascade(items):
            return await super().ask_async(items, deadline_s)
        self._check(items, deadline_s)
        ends = _End(deadline_s)
        steps = cascade_steps(self.stages, [query for _, query in items])
        stage, asked = next(steps)
        while True:
            try:
                stage, asked = steps.send(await stage.ask_async(asked, ends.left_s))
            except StopIteration as e:
                return list(e.value)

    def _is_cascade(self, items: Sequence[Item]) -> bool:
        """Whether all items ask the configured prompts; where some ask other sets, all go to the last stage at once."""
        return bool(self.stages and items) and all(active is self.stages[-1].whole for active, _ in items)

    def last_stage(self) -> tuple[Ask, AskAsync]:
        """How the configured prompts themselves are asked."""
        return super().ask, super().ask_async


class _End:
    """When a request's deadline is."""

    def __init__(self, deadline_s: float | None) -> None:
        self._ends_s = None if deadline_s is None else perf_counter() + deadline_s

    @property
    def left_s(self) -> float | None:
        """Seconds until then; None where there is no deadline."""
        return None if self._ends_s is None else self._ends_s - perf_counter()
