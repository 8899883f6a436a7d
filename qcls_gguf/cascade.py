"""Cascades: stages are asked one after the other; prompts of whose answer a stage is not sure go to the next one."""

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
    """the `stage` of its answers"""
    whole: ActiveSet
    """the set of all prompts that it is asked"""
    single: Mapping[str, ActiveSet]
    """each of these prompts as a set of its own, with the same calibration; empty for the first stage"""
    thresholds: Mapping[str, float]
    """by prompt, the least probability of a final answer; empty for the last stage, whose answers are all final"""
    model: ModelInfo
    """which model answers"""
    ask: Ask
    ask_async: AskAsync

    def items(self, query: str, names: Sequence[str]) -> list[Item]:
        """The items that ask some prompts a query: the whole set if these are all of its prompts, else single ones."""
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
    """Ask the stages one after the other: a generator that yields a stage with its items, is sent the answers to them,
    and returns the results.

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
    """One query's answers, with the times and counts of all calls added; all results of a call have the call's own."""
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
    """The configuration of a stage, without abstention and with the last stage's limits for queries.

    place: its place in the configuration, for errors. Raises ConfigError if its prompts differ from the last stage's.
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
    """For each prompt a digest of everything that its probabilities depend on, except the model."""
    return {
        prompt.name: stage_hash(
            prompt_hash(prompt), adjustment.temperature, None if adjustment.bias is None else adjustment.bias.tolist()
        )
        for prompt, adjustment in zip(loaded.active.prompts.settings, loaded.adjustments, strict=True)
    }


def check_stamps(
    place: str, hashes: Mapping[str, str], model_sha256: str, loaded: LoadedPrompts, model: ModelInfo
) -> None:
    """Raise ConfigError for a model or prompts to which the thresholds were not fitted."""
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
    """empty until all are ready; the last one is the configured prompts. Other prompt sets do not use the stages"""

    @property
    def has_steps(self) -> bool:
        """Whether there is one stage only."""
        return not self.stages

    def ask(self, items: Sequence[Item], deadline_s: float | None = None) -> list[Result]:
        """As `Requests.ask`, but queries of the configured prompts go through the stages."""
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
        """Whether all items are of the configured prompts; otherwise all of them go to the last stage directly."""
        return bool(self.stages and items) and all(active is self.stages[-1].whole for active, _ in items)

    def last_stage(self) -> tuple[Ask, AskAsync]:
        """The functions that ask the configured prompts directly, without earlier stages."""
        return super().ask, super().ask_async


class _End:
    """The deadline of a request, from its arrival."""

    def __init__(self, deadline_s: float | None) -> None:
        self._ends_s = None if deadline_s is None else perf_counter() + deadline_s

    @property
    def left_s(self) -> float | None:
        """Seconds left; None without a deadline."""
        return None if self._ends_s is None else self._ends_s - perf_counter()
