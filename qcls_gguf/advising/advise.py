"""An advice from a configuration and queries: derive candidates, try them, time those that are left, recommend."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from ..bench.roofline import decode_weights
from ..classifier import Classifier
from ..config.schema import Config, ModelConfig
from ..data.labelled import BadRow
from ..errors import ConfigError, ModelError, PlanError
from ..evaluation.kept_scores import KeptScores
from ..model import find_model
from ..opening import ClassifierOpener
from ..report.environment import environment
from ..report.progress import OnProgress, counter
from .candidate import Candidate
from .derive import derive
from .given import given_candidate
from .ladder import check_vocabulary, model_name, read_ladder
from .planning import NotTried, Planned, Planner, with_room, worth_trying
from .queries import TrialQueries, read_trial_queries
from .recommend import pareto, recommendation
from .records import AdviceRecord, CandidateRecord, QueriesRecord
from .summary import Summariser
from .target import read_target
from .trial import Row, Trial, ask_all
from .tried import Bench, Keep, Tried

ORIGINAL = "original"
_N_LISTED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceSettings:
    """What is tried, and how."""

    config: Config
    queries: Path
    """the user's queries, see read_trial_queries"""
    also: tuple[Config, ...] = ()
    """other configurations to try beside those that are derived; of each the prompts count"""
    query_column: str | None = None
    min_agreement: float = 0.98
    """of each prompt's answers"""
    error_level: float = 0.01
    """chance that a candidate which keeps min_agreement in every prompt is dropped early"""
    targets: tuple[Path, ...] = ()
    """records of a benchmark with `forward`, made on the target; one for each model"""
    predict_t4: bool = True
    """without records, predict a T4 from its table"""
    models: Path | None = None
    """a ladder of other models"""
    fetch: bool = False
    """also take models of the ladder that are not on disk yet"""
    resume: Path | None = None
    """a file that keeps the answers, so that an interrupted run goes on from there"""
    n_latency: int = 200
    """queries that requests are timed with; 0: none"""
    seed: int = 0
    """of the queries' order"""


def advise(
    settings: AdviceSettings,
    opener: ClassifierOpener,
    *,
    on_progress: OnProgress = lambda part, done, total: None,
) -> AdviceRecord:
    """Find the fastest configuration that still answers like the one given.

    Raises ConfigError for queries, targets or a ladder that cannot be used, before anything is computed, and what
    Classifier raises. What concerns single candidates or models is in the record.
    """
    config = opener.rendered(settings.config)
    queries = read_trial_queries(
        settings.queries,
        {prompt.name: prompt.labels for prompt in config.prompts},
        query_column=settings.query_column,
        seed=settings.seed,
    )
    if settings.resume is not None and settings.resume.exists() and settings.queries.samefile(settings.resume):
        raise ConfigError(f"`resume` {settings.resume}: is the file of the queries: name one of its own")
    targets = [read_target(path) for path in settings.targets]
    ladder = read_ladder(settings.models) if settings.models else ()
    model = opener.models.of(config)
    given = [given_candidate(config, opener.rendered(each), config_name(each)) for each in settings.also]
    derived = derive(config, model)
    notes = [] if derived.no_joint is None else [f"no text for all prompts can be derived: {derived.no_joint}"]
    planner = Planner(config, model, queries.texts)
    whole = planner.plan(Candidate(name=ORIGINAL, why="the configuration as it is", config=config))
    chosen, others = worth_trying(planner, [*given, *derived.candidates], whole.n_tokens)
    roomy = dataclasses.replace(config, runtime=with_room(config.runtime, [*chosen, *chosen, whole]))
    with opener.open(roomy) as classifier:
        queries = _usable(queries, classifier)
        original = _original(settings, classifier, whole, queries, on_progress)
        bench = Bench(
            classifier=classifier,
            model_name=model_name(config.model),
            queries=queries.texts,
            original=original.rows,
            limit=settings.min_agreement,
            level=settings.error_level,
            keep=_keep(settings, config),
            on_progress=on_progress,
        )
        tried = [original, *_try_all(bench, config, chosen, planner, whole.n_tokens)]
        timed = queries.texts[: settings.n_latency]
        if timed:
            bench.time(tried[1:], original, classifier.configured, timed)
        summariser = Summariser(
            prompts=config.prompts,
            rows=queries.rows,
            original=original.rows,
            whole=whole,
            limit=settings.min_agreement,
            targets=targets,
            predict_t4=settings.predict_t4,
        )
        weights = decode_weights(model.path, head=False)
        records = [summariser.record(each, classifier, weights) for each in tried]
        records += [summariser.not_tried(each, bench.model_name, classifier.model) for each in others]
        for entry in ladder:
            records += _try_model(settings, opener, bench, config, entry, tried, summariser, timed)
        found = _with_pareto(records)
        best, reason = recommendation(found, settings.min_agreement, by_target=bool(targets))
        return AdviceRecord(
            queries=_queries_record(queries, settings.seed),
            config=config,
            model=classifier.model,
            warnings=opener.warnings,
            environment=environment(config, classifier.model),
            min_agreement=settings.min_agreement,
            error_level=settings.error_level,
            candidates=tuple(found),
            recommended=None if best is None else best.name,
            reason=reason,
            notes=(*notes, *summariser.notes),
        )


def config_name(config: Config) -> str:
    """A configuration as a table names it."""
    return config.path.stem if config.path else "given"


def _usable(queries: TrialQueries, classifier: Classifier) -> TrialQueries:
    """The queries without those that the classifier refuses. Raises ConfigError where none is left."""
    rows, bad = [], list(queries.bad)
    for row in queries.rows:
        try:
            classifier.check(row.query)
            rows.append(row)
        except PlanError as e:
            bad.append(BadRow(row.line, str(e)))
    if not rows:
        raise ConfigError(f"`queries` {queries.path}: none of {len(bad)} queries can be used: line {bad[0].line}: "
                          f"{bad[0].reason}")  # fmt: skip
    return dataclasses.replace(queries, rows=tuple(rows), bad=tuple(sorted(bad, key=lambda row: row.line)))


def _keep(settings: AdviceSettings, original: Config) -> Keep:
    """Keeps answers by the prompts, the original's runtime settings, and the model that gave them."""

    def keep(config: Config, classifier: Classifier) -> KeptScores | nullcontext[None]:
        if settings.resume is None:
            return nullcontext()
        same_room = dataclasses.replace(config, runtime=original.runtime)
        return KeptScores(settings.resume, same_room, classifier.model, exact=False)

    return keep


def _original(
    settings: AdviceSettings, classifier: Classifier, whole: Planned, queries: TrialQueries, on_progress: OnProgress
) -> Tried:
    config = whole.candidate.config
    on_row = counter(on_progress, f"original, {model_name(config.model)}", len(queries.rows))
    with _keep(settings, config)(config, classifier) as kept:
        rows: tuple[Row, ...] = tuple(ask_all(classifier.configured, queries.texts, kept, on_row))
    return Tried(
        candidate=whole.candidate,
        planned=whole,
        state="original",
        trial=Trial(rows=rows, worse=(), complete=True),
        model_name=model_name(config.model),
    )


def _try_all(bench: Bench, config: Config, chosen: Sequence[Planned], planner: Planner, n_tokens: float) -> list[Tried]:
    """Every candidate, each followed by the one with its losers apart where there is one."""
    found: list[Tried] = []
    for planned in chosen:
        tried = bench.try_one(planned, may_part=True)
        found.append(tried)
        if (apart := bench.part(config, tried, planner, n_tokens)) is not None:
            found.append(apart)
    return found


def _try_model(
    settings: AdviceSettings,
    opener: ClassifierOpener,
    bench: Bench,
    config: Config,
    entry: ModelConfig,
    tried: Sequence[Tried],
    summariser: Summariser,
    timed: Sequence[str],
) -> list[CandidateRecord]:
    """One model of the ladder with the original's prompts, and with those that its candidates kept the limit by."""
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
        if each.state in ("original", "tried") and not bench.losers(each)
    ]
    try:
        if not settings.fetch:
            find_model(entry, offline=True)
        with ClassifierOpener(offline=not settings.fetch) as own:
            model = own.models.of(candidates[0].config)
            check_vocabulary(
                bench.classifier.engine.model, model, [prompt.expanded_template for prompt in config.prompts]
            )
            planner = Planner(candidates[0].config, model, bench.queries)
            chosen, others = worth_trying(planner, candidates, float("inf"))
            room = with_room(config.runtime, [*chosen, *chosen])
            base = dataclasses.replace(candidates[0].config, runtime=room)
            with own.open(base, quiet=True) as classifier:
                here = dataclasses.replace(bench, classifier=classifier, model_name=name)
                found = [here.try_one(planned, may_part=False) for planned in chosen]
                if timed:
                    here.time(found, None, bench.classifier.configured, timed)
                weights = decode_weights(model.path, head=False)
                records = [summariser.record(each, classifier, weights) for each in found]
                return records + [summariser.not_tried(each, name, classifier.model) for each in others]
    except (ConfigError, ModelError) as e:
        return [summariser.not_tried(NotTried(candidate=candidates[0], n_tokens=None, reason=str(e)), name, None)]


def _with_pareto(records: Sequence[CandidateRecord]) -> list[CandidateRecord]:
    best = pareto(records)
    return [each.model_copy(update={"is_pareto": each.name in best}) for each in records]


def _queries_record(queries: TrialQueries, seed: int) -> QueriesRecord:
    return QueriesRecord(
        path=str(queries.path),
        sha256=queries.sha256,
        n_queries=len(queries.rows),
        n_labelled=sum(bool(row.labels) for row in queries.rows),
        n_bad=len(queries.bad),
        bad=queries.bad[:_N_LISTED],
        seed=seed,
    )
