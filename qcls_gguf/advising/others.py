"""What is tried beside the candidates of the original's own model: models of a ladder, and cascades."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from ..bench.roofline import Weights, decode_weights
from ..config.schema import Config, ModelConfig
from ..errors import ConfigError, ModelError, PlanError
from ..model import find_model
from ..opening import ClassifierOpener
from ..report.progress import counter
from .cascading import Fitted, TokensAlone, Wanted, can_be_first, first_stage, fit_cascade
from .ladder import check_vocabulary, model_name
from .latency import times_in_turns
from .planning import NotTried, Planned, Planner, with_room, worth_trying
from .records import CandidateRecord, MemoryNeeds
from .settings import AdviceSettings
from .summary import Summariser, cell_bytes
from .tried import Bench, Tried


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Advising:
    """An advice at work: what was asked, and the original with what it is compared by."""

    settings: AdviceSettings
    opener: ClassifierOpener
    config: Config
    """the original"""
    bench: Bench
    """of the original's model"""
    planner: Planner
    whole: Planned
    summariser: Summariser
    wanted: Wanted | None
    """what a cascade has to keep; none where none is fitted"""
    timed: Sequence[str]
    """queries that requests are timed with"""


def cascades(
    advising: Advising, bench: Bench, tried: Sequence[Tried], weights: Weights | None
) -> list[CandidateRecord]:
    """The best cascade of a model's candidates and the original, where there is one, timed as it would run.

    bench, tried: of that model; weights: None where it is another than the original's.
    """
    if advising.wanted is None:
        return []
    tokens = TokensAlone(advising.planner, advising.whole)
    first = first_stage(advising.bench, tried, advising.wanted, tokens)
    fitted = None
    if first is not None:
        fitted = fit_cascade(
            advising.bench, advising.config, first, advising.whole, advising.planner, bench, advising.wanted
        )
    if first is None or fitted is None:
        which = (
            "no candidate was tried to the end"
            if first is None
            else f"no threshold of {first.candidate.name} is proven"
        )
        advising.summariser.notes.append(f"no cascade with {bench.model_name}: {which}")
        return []
    if advising.timed:
        _time(advising, fitted)
    half = len(advising.bench.queries) // 2
    summariser = dataclasses.replace(
        advising.summariser, rows=advising.summariser.rows[half:], original=advising.summariser.original[half:]
    )
    record = summariser.record(fitted.tried, advising.bench.classifier, weights)
    update: dict[str, object] = {"cascade": fitted.record}
    assert fitted.tried.planned is not None
    if bench is not advising.bench:  # the stage's weights and cells are of its own model
        n_own, n_stage = advising.whole.n_prefix_tokens, fitted.tried.planned.n_more_prefix_tokens
        both = advising.bench.classifier, bench.classifier
        update["memory"] = MemoryNeeds(
            weights_bytes=sum(each.model.size_bytes for each in both),
            prefix_cells=n_own + n_stage,
            prefix_bytes=round(n_own * cell_bytes(both[0]) + n_stage * cell_bytes(both[1])),
        )
    return [record.model_copy(update=update)]


def _time(advising: Advising, fitted: Fitted) -> None:
    """Open the cascade as its files say, and time it in turns with the original."""
    config = fitted.tried.candidate.config
    assert config.cascade is not None
    (stage,) = config.cascade.stages
    part = f"time {fitted.tried.candidate.name}"
    with TemporaryDirectory() as folder:
        file = Path(folder) / stage.config.name
        file.write_text(fitted.record.yaml, encoding="utf-8")
        cascade = dataclasses.replace(config.cascade, stages=(dataclasses.replace(stage, config=file),))
        try:
            with advising.opener.open(dataclasses.replace(config, cascade=cascade), quiet=True) as classifier:
                on_query = counter(advising.bench.on_progress, part, len(advising.timed))
                sets = {"original": advising.bench.classifier.configured, "cascade": classifier}
                found = times_in_turns(sets, advising.timed, on_query)
        except (ConfigError, ModelError, PlanError) as e:
            fitted.tried.note = f"not timed: {e}"
            return
    fitted.tried.ms, fitted.tried.original_ms = found["cascade"], found["original"]


def try_model(advising: Advising, entry: ModelConfig, tried: Sequence[Tried]) -> list[CandidateRecord]:
    """One model of the ladder with the original's prompts, and with those of the candidates that kept the limit.

    Where a cascade is wanted also with those that did not: only their sure answers would count.
    """
    settings, config, bench, summariser = advising.settings, advising.config, advising.bench, advising.summariser
    name = model_name(entry)
    candidates = [
        dataclasses.replace(
            each.candidate,
            name=f"{each.candidate.name}, {name}",
            why=f"{each.candidate.why}, with another model",
            config=dataclasses.replace(each.candidate.config, model=entry, calibration=None),
            can_part=False,
        )
        for each in tried
        if each.state in ("original", "tried") and (can_be_first(each, advising.wanted) or not bench.losers(each))
    ]
    try:
        if not settings.fetch:
            _check_on_disk(entry)
        with ClassifierOpener(offline=not settings.fetch) as own:
            model = own.model_of(candidates[0].config)
            texts = [prompt.expanded_template for prompt in config.prompts]
            check_vocabulary(bench.classifier.engine.model, model, texts)
            planner = Planner(candidates[0].config, model, bench.queries)
            chosen, others = worth_trying(planner, candidates, None)
            room = with_room(config.runtime, [*chosen, *chosen])
            base = dataclasses.replace(candidates[0].config, runtime=room)
            with own.open(base, quiet=True) as classifier:
                here = dataclasses.replace(bench, classifier=classifier, model_name=name)
                found = [here.try_one(planned, may_part=False) for planned in chosen]
                if advising.timed:
                    here.time(found, None, bench.classifier.configured, advising.timed)
                weights = decode_weights(model, head=False)
                records = [summariser.record(each, classifier, weights) for each in found]
                records += [summariser.not_tried(each, name, classifier.model) for each in others]
                return records + cascades(advising, here, found, None)
    except (ConfigError, ModelError) as e:
        return [summariser.not_tried(NotTried(candidate=candidates[0], n_tokens=None, reason=str(e)), name, None)]


def _check_on_disk(entry: ModelConfig) -> None:
    """Raise ModelError or ConfigError for a model that would have to be fetched."""
    try:
        find_model(entry, offline=True)
    except (ConfigError, ModelError):
        if entry.hf_repo is None:
            raise
        raise ModelError(f"{model_name(entry)} is not on disk, and is fetched only with `fetch`") from None
