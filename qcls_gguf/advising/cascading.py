"""Cascades of a candidate and the original: which to ask first, from which probability on, and at what cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import numpy as np

from ..cascade import stamps
from ..config.cascade import CascadeConfig, CascadeStage, StagePrompt
from ..config.schema import Config
from ..config.words import counted
from ..errors import ConfigError
from ..prompts.prompt_set import PromptSet
from .candidate import Candidate
from .plan_tokens import PlannedRequest
from .planning import Planned, Planner
from .records import CascadeStageRecord, PromptThreshold
from .thresholds import Threshold, fit_threshold, n_needed, proposed_thresholds
from .trial import Row
from .tried import Bench, Tried
from .yaml_text import config_yaml

STAGE_FILE = "first-stage.yaml"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a cascade has to keep."""

    agreement: float
    """with the last stage, for each prompt; below 1"""
    confidence: float = 0.95

    def check(self, n_queries: int) -> None:
        """Raise ConfigError for too few queries to prove any threshold."""
        needed = 2 * n_needed(self.agreement, self.confidence)
        if n_queries < needed:
            raise ConfigError(
                f"{counted(n_queries, 'query', 'queries')} are too few to prove an agreement of {self.agreement:.2%} "
                f"with {self.confidence:.0%} confidence: {needed} are needed at least, half of them to propose "
                "thresholds"
            )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A cascade that was found."""

    tried: Tried
    """its answers to the second half of the queries"""
    record: CascadeStageRecord


def first_stage(bench: Bench, tried: Sequence[Tried], wanted: Wanted, tokens: TokensAlone) -> Tried | None:
    """The candidate whose cascade would cost the fewest tokens, by the first half of the queries; none without any."""
    half = len(bench.queries) // 2

    def cost(each: Tried) -> float:
        assert each.planned is not None
        alone, shares = 0.0, []
        for name in tokens.names:
            probability, differs = answers(bench.original[:half], each.rows[:half], name)
            proposed = proposed_thresholds(probability, differs, wanted.agreement)
            shares.append(float((probability < proposed[-1]).mean()) if proposed else 1.0)
            alone += shares[-1] * tokens.mean(name)
        return each.planned.cost + alone + max(shares) * tokens.pass_tokens

    possible = [each for each in tried if each.planned and can_be_first(each, wanted)]
    return min(possible, key=cost, default=None)


def can_be_first(tried: Tried, wanted: Wanted | None) -> bool:
    """Whether a cascade is wanted that a candidate could be the first stage of: one of other words for labels cannot
    stand for the original, and one with the original's text for some prompts saves less than without."""
    is_other = not tried.candidate.renamed and not tried.candidate.is_parted
    return wanted is not None and tried.state == "tried" and is_other


class TokensAlone:
    """What each of the original's prompts feeds when it is asked alone."""

    def __init__(self, planner: Planner, whole: Planned) -> None:
        self._by_name = {
            prompt.name: planner.requests(whole.prompts.some([prompt.name])) for prompt in whole.prompts.prompts
        }

    @property
    def pass_tokens(self) -> int:
        """Tokens that a pass is counted as, of a model with states, for all that are asked together; else 0."""
        return max(request.pass_tokens for requests in self._by_name.values() for request in requests)

    @property
    def names(self) -> list[str]:
        """The prompts."""
        return list(self._by_name)

    def mean(self, name: str) -> float:
        """Tokens of a prompt's request, on average."""
        return fmean(request.n_tokens for request in self._by_name[name])


def answers(original: Sequence[Row], tried: Sequence[Row], name: str) -> tuple[np.ndarray, np.ndarray]:
    """(n,) probabilities of a prompt's answers, and whether they differ; of scores that are not finite 0 and False."""
    pairs = [
        (0.0, False)
        if first is None or second is None
        else (float(second[name].max()), bool(first[name].argmax() != second[name].argmax()))
        for first, second in zip(original, tried, strict=True)
    ]
    return np.array([each for each, _ in pairs]), np.array([each for _, each in pairs], np.bool_)


def fit_cascade(
    bench: Bench, original: Config, first: Tried, whole: Planned, planner: Planner, stage_bench: Bench, wanted: Wanted
) -> Fitted | None:
    """The cascade of a candidate and the original; none where no threshold is proven for any prompt.

    stage_bench: of the candidate's model.
    """
    half = len(bench.queries) // 2
    assert first.planned is not None
    found: dict[str, Threshold] = {}
    for prompt in original.prompts:
        probability, differs = answers(bench.original, first.rows, prompt.name)
        found[prompt.name] = fit_threshold(probability, differs, half, wanted.agreement, wanted.confidence)
    thresholds = {name: each.threshold for name, each in found.items() if each.threshold is not None}
    if not thresholds:
        return None
    with stage_bench.classifier.prompt_set(first.planned.prompts) as loaded:
        stage_stamps = stamps(loaded)
    stage = CascadeStage(
        config=Path(STAGE_FILE),
        model_sha256=stage_bench.classifier.model.sha256,
        prompts={
            name: StagePrompt(threshold=threshold, prompt_hash=stage_stamps[name])
            for name, threshold in thresholds.items()
        },
    )
    cascade = CascadeConfig(
        stages=(stage,),
        model_sha256=bench.classifier.model.sha256,
        prompt_hashes=stamps(bench.classifier.configured),
    )
    name = f"cascade of {first.candidate.name}"
    why = (
        f"a cascade: {first.candidate.name} is asked first, and the original only where it is not sure; answers agree "
        f"with the original's in at least {wanted.agreement:.1%} of unseen queries, for each prompt with "
        f"{wanted.confidence:.0%} confidence"
    )
    rows = _rows(bench.original[half:], first.rows[half:], thresholds)
    asked = first.planned.prompts.some(list(thresholds))
    requests = _requests(planner, asked, whole.prompts, bench.queries[half:], first.rows[half:], thresholds)
    room = original.runtime
    n_more = sum(map(len, set(asked.prefixes)))
    if room.n_ctx == "auto" and room.question_cells == "auto" and stage_bench is bench:
        room = dataclasses.replace(room, question_cells=1024 + n_more)
    config = dataclasses.replace(original, cascade=cascade, runtime=room)
    stage_text = config_yaml(
        first.candidate.config, [f"The first stage of a cascade, by `qcls-gguf advise`: {first.candidate.name}."]
    )
    planned = Planned(
        candidate=Candidate(name=name, why=why, config=config),
        prompts=whole.prompts,
        requests=tuple(requests),
        n_more_prefix_tokens=n_more,
    )
    return Fitted(
        tried=Tried(
            candidate=planned.candidate, planned=planned, state="tried", model_name=first.model_name, rows=rows
        ),
        record=_record(first, found, wanted, stage_text),
    )


def _rows(original: Sequence[Row], first: Sequence[Row], thresholds: dict[str, float]) -> tuple[Row, ...]:
    """The cascade's answers."""
    return tuple(
        None
        if before is None or after is None
        else {
            name: after[name] if after[name].max() >= thresholds.get(name, 2.0) else probability
            for name, probability in before.items()
        }
        for before, after in zip(original, first, strict=True)
    )


def _requests(
    planner: Planner,
    asked: PromptSet,
    whole: PromptSet,
    queries: Sequence[str],
    first: Sequence[Row],
    thresholds: dict[str, float],
) -> list[PlannedRequest]:
    """What the cascade feeds for each query: the first stage's tokens, then those of the prompts that go on."""
    found = []
    for query, row in list(zip(queries, first, strict=True))[: planner.n_planned]:
        left = [
            prompt.name
            for prompt in whole.prompts
            if row is None or row[prompt.name].max() < thresholds.get(prompt.name, 2.0)
        ]
        decodes = planner.requests(asked, [query])[0].decodes
        if left:
            decodes += planner.requests(whole.some(left), [query])[0].decodes
        found.append(PlannedRequest(decodes=decodes))
    return found


def _record(first: Tried, found: dict[str, Threshold], wanted: Wanted, stage_text: str) -> CascadeStageRecord:
    return CascadeStageRecord(
        stage=first.candidate.name,
        wanted_agreement=wanted.agreement,
        confidence=wanted.confidence,
        prompts={
            name: PromptThreshold(
                threshold=each.threshold,
                n=each.n,
                n_answered=each.n_answered,
                n_other=each.n_other,
                agreement=1 - each.n_other / each.n,
                least_agreement=each.least_agreement,
            )
            for name, each in found.items()
        },
        answered=fmean(each.n_answered / each.n for each in found.values()),
        yaml=stage_text,
    )
