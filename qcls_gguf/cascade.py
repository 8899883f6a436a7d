"""Cascades: stages are asked one after the other; prompts of whose answer a stage is not sure go to the next one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from .config.calibration_file import prompt_hash
from .config.load import load_config
from .config.schema import AGAIN, CascadeStage, Config, other_prompts, short, stage_hash
from .core.core import Core, Item
from .core.handle import LoadedPrompts
from .core.loading import some_of
from .errors import ConfigError, prefixed
from .score.result import Counts, ModelInfo, PromptResult, Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage of a cascade, ready for queries."""

    name: str
    """the `stage` of its answers"""
    together: LoadedPrompts
    """the handle of all prompts that this stage answers"""
    alone: Mapping[str, LoadedPrompts]
    """by name, a handle of each of these prompts alone, with the same calibration"""
    thresholds: Mapping[str, float]
    """by prompt, the least probability of a final answer; empty for the last stage, whose answers are all final"""
    core: Core
    """answers its items"""

    def items(self, query: str, names: Sequence[str]) -> list[Item]:
        """The items that ask these prompts a query: one if they are all of the stage's, else one for each prompt."""
        mine = [prompt.name for prompt in self.together.prompts]
        asked = [name for name in mine if name in names]
        if asked == mine:
            return [(self.together, query)]
        return [(self.alone[name], query) for name in asked]


_SUMMED = ("n_decodes", "n_tokens_new", "n_tokens_cached", "n_positions")


@dataclass(slots=True, kw_only=True)
class _Call:
    """What one stage is asked for some queries, and its answers."""

    core: Core
    items: list[Item]
    left_s: float | None
    """seconds until the deadline; None without one"""
    results: list[Result] = field(default_factory=list)


def _result(
    query: str, answers: Sequence[PromptResult], calls: Sequence[Result], n_queries: int, model: ModelInfo
) -> Result:
    """One query's answers, with the times and counts of all calls added."""
    return Result(
        query=query,
        total_ms=sum(call.total_ms for call in calls),
        stage_ms={name: sum(call.stage_ms[name] for call in calls) for name in calls[0].stage_ms},
        counts=Counts(
            n_queries=n_queries,
            **{key: sum(getattr(call.counts, key) for call in calls) for key in _SUMMED},
        ),
        results=tuple(answers),
        model=model,
        wait_ms=sum(call.wait_ms for call in calls),
        n_chars_cut=max(call.n_chars_cut for call in calls),
    )


def stage_config(setting: CascadeStage, last: Config, place: str) -> Config:
    """The configuration of a stage, without abstention and with the last stage's limits for queries.

    place: its place in the configuration, for errors. Raises ConfigError if its prompts differ from the last stage's.
    """
    with prefixed(f"{place}.config"):
        config = load_config(setting.config)
    unknown = [name for name in setting.prompts if name not in {prompt.name for prompt in last.prompts}]
    why = f"prompts.{unknown[0]} is no prompt of the configuration" if unknown else None
    if why := why or other_prompts(last.prompts, config.prompts):
        raise ConfigError(f"{place}: {setting.config}: {why}")
    limits = {key: getattr(last.runtime, key) for key in ("max_query_tokens", "long_queries", "max_waiting")}
    return config.changed(
        prompts=tuple(prompt.changed(min_confidence=None, fallback=None) for prompt in config.prompts),
        runtime=config.runtime.changed(**limits),
        cascade=None,
    )


def stamps(loaded: LoadedPrompts) -> dict[str, str]:
    """For each prompt a digest of everything that its probabilities depend on, except the model."""
    return {
        prompt.name: stage_hash(
            head.digest if head else prompt_hash(prompt),
            adjustment.temperature,
            None if adjustment.bias is None else adjustment.bias.tolist(),
        )
        for prompt, head, adjustment in zip(
            loaded.compiled.settings, loaded.compiled.heads, loaded.adjustments, strict=True
        )
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
                f"{short(now.get(name, 'none'))} now (template, labels, scoring, prior, calibration, head): {AGAIN}"
            )


class Cascade:
    """Asks queries of the stages, the cheapest first."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        """stages: the last one answers every prompt."""
        self.stages = stages

    def ask(self, asked: Sequence[Item], deadline_s: float | None = None) -> list[Result]:
        """A result for each query and its prompts; the same as Core.ask otherwise.

        asked: queries, each with all of the last stage's prompts or some, or with other prompts of its engine, which
        are asked with the last stage. The results have the last stage's model, the prompts in its order, and the times
        and counts of all stages together.
        """
        results: list[Result] = []
        for call in self._calls(asked, deadline_s, results):
            call.results = call.core.ask(call.items, call.left_s)
        return results

    async def ask_async(self, asked: Sequence[Item], deadline_s: float | None = None) -> list[Result]:
        """`ask` without blocking the event loop."""
        results: list[Result] = []
        for call in self._calls(asked, deadline_s, results):
            call.results = await call.core.ask_async(call.items, call.left_s)
        return results

    def _calls(self, asked: Sequence[Item], deadline_s: float | None, results: list[Result]) -> Iterator[_Call]:
        """The calls of the stages, one after the other; each is answered before the next one is made. After the last
        one, results has those of all queries.
        """
        self.stages[-1].core.check(asked, deadline_s)
        until_s = None if deadline_s is None else perf_counter() + deadline_s
        found: list[dict[str, PromptResult]] = [{} for _ in asked]
        calls: list[_Call] = []
        for index, stage in enumerate(self.stages):
            is_last = index == len(self.stages) - 1
            owners: list[int] = []
            items: list[Item] = []
            for owner, (wanted, query) in enumerate(asked):
                if wanted.is_staged:
                    left = [each.name for each in wanted.prompts if each.name not in found[owner]]
                    of_query = stage.items(query, left)
                else:
                    of_query = [(wanted, query)] if is_last else []
                items += of_query
                owners += [owner] * len(of_query)
            if not items:
                continue
            call = _Call(core=stage.core, items=items, left_s=None if until_s is None else until_s - perf_counter())
            yield call
            calls.append(call)
            for owner, result in zip(owners, call.results, strict=True):
                for answer in result.results:
                    if answer.probability >= stage.thresholds.get(answer.prompt, 0.0):
                        name = stage.name if asked[owner][0].is_staged else None
                        found[owner][answer.prompt] = answer._replace(stage=name)
        of_calls = [call.results[0] for call in calls]  # all results of a call have the call's times and counts
        model = self.stages[-1].core.info
        for (wanted, query), answered in zip(asked, found, strict=True):
            answers = [answered[prompt.name] for prompt in wanted.prompts]
            results.append(_result(query, answers, of_calls, len(asked), model))


def open_stage(name: str, loaded: LoadedPrompts, setting: CascadeStage | None) -> Stage:
    """A stage on the engine that holds its prompts. setting: the prompts that it is asked; None: all.

    Raises ConfigError for a stage that would abstain.
    """
    if setting is not None and any(each.min_confidence is not None for each in loaded.compiled.settings):
        raise ConfigError(f"cascade: the calibration of stage {name} states an error rate: name one that does not")
    names = [prompt.name for prompt in loaded.prompts if setting is None or prompt.name in setting.prompts]
    return Stage(
        name=name,
        together=loaded if len(names) == len(loaded.prompts) else some_of(loaded, names),
        alone={each: some_of(loaded, [each]) for each in names},
        thresholds={} if setting is None else {each: setting.prompts[each].threshold for each in names},
        core=loaded.core,
    )
