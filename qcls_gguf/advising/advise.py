"""An advice from a configuration and queries: derive candidates, try them, time those that are left, recommend."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import nullcontext

from ..bench.roofline import decode_weights
from ..classifier import Classifier
from ..config.schema import Config, ModelConfig
from ..data.labelled import BadRow
from ..errors import ConfigError, PlanError
from ..evaluation.kept_scores import KeptScores
from ..model import Model
from ..opening import ClassifierOpener
from ..report.environment import environment
from ..report.progress import OnProgress, counter
from .candidate import Candidate
from .cascading import Wanted
from .derive import derive
from .given import given_candidate
from .ladder import model_name, read_ladder
from .others import Advising, cascades, try_model
from .planning import NotTried, Planned, Planner, with_room, worth_trying
from .queries import TrialQueries, read_trial_queries
from .recommend import pareto, recommendation
from .records import AdviceRecord, CandidateRecord, QueriesRecord
from .settings import AdviceSettings
from .summary import Summariser
from .target import read_target
from .trial import Row, ask_all
from .tried import Bench, Keep, Tried

ORIGINAL = "original"
_N_LISTED = 20
_WORTH_A_CASCADE = 0.8
"""With a cascade candidates go on that agree so often: only their sure answers would count."""


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
    config = dataclasses.replace(opener.rendered(settings.config), cascade=None)
    queries = _queries(settings, config)
    targets = [read_target(path) for path in settings.targets]
    ladder = read_ladder(settings.models) if settings.models else ()
    model = opener.model_of(config)
    given = [given_candidate(config, opener.rendered(each), config_name(each)) for each in settings.also]
    derived = derive(config, model)
    notes = [] if derived.no_joint is None else [f"no text for all prompts can be derived: {derived.no_joint}"]
    possible = [*given, *derived.candidates]
    planner, whole, chosen, others = _planned(config, model, queries, possible)
    roomy = dataclasses.replace(config, runtime=with_room(config.runtime, [*chosen, *chosen, whole]))
    with opener.open(roomy) as classifier:
        usable = _usable(queries, classifier)
        if len(usable.rows) < len(queries.rows):  # what is refused must not count in what requests feed
            planner, whole, chosen, others = _planned(config, model, usable, possible)
        queries = usable
        wanted = _wanted(settings, len(queries.rows), notes)
        original = _original(settings, classifier, whole, queries, on_progress)
        advising = Advising(
            settings=settings,
            opener=opener,
            config=config,
            bench=_bench(settings, classifier, config, queries, original.rows, wanted, on_progress),
            planner=planner,
            whole=whole,
            summariser=Summariser(
                prompts=config.prompts,
                rows=queries.rows,
                original=original.rows,
                whole=whole,
                limit=settings.min_agreement,
                targets=targets,
                predict_t4=settings.predict_t4,
            ),
            wanted=wanted,
            timed=queries.texts[: settings.n_latency],
        )
        found = _with_pareto(_records(advising, original, chosen, others, ladder))
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
            notes=(*notes, *advising.summariser.notes),
        )


def _queries(settings: AdviceSettings, config: Config) -> TrialQueries:
    """The queries to try candidates on. Raises ConfigError."""
    queries = read_trial_queries(
        settings.queries,
        {prompt.name: prompt.labels for prompt in config.prompts},
        query_column=settings.query_column,
        seed=settings.seed,
    )
    if settings.resume is not None and settings.resume.exists() and settings.queries.samefile(settings.resume):
        raise ConfigError(f"`resume` {settings.resume}: is the file of the queries: name one of its own")
    return queries


def _bench(
    settings: AdviceSettings,
    classifier: Classifier,
    config: Config,
    queries: TrialQueries,
    original: Sequence[Row],
    wanted: Wanted | None,
    on_progress: OnProgress,
) -> Bench:
    """Where candidates on the original's model are tried. original: its answers."""
    limit = settings.min_agreement
    return Bench(
        classifier=classifier,
        model_name=model_name(config.model),
        queries=queries.texts,
        original=original,
        limit=limit,
        drop_limit=limit if wanted is None else min(limit, _WORTH_A_CASCADE),
        level=settings.error_level,
        keep=_keep(settings, config),
        on_progress=on_progress,
    )


def _records(
    advising: Advising,
    original: Tried,
    chosen: Sequence[Planned],
    others: Sequence[NotTried],
    ladder: Sequence[ModelConfig],
) -> list[CandidateRecord]:
    """The original, what is tried beside it, cascades and the ladder's models among it, and what is not."""
    bench, summariser = advising.bench, advising.summariser
    classifier = bench.classifier
    tried = [original, *_try_all(bench, advising.config, chosen, advising.planner, advising.whole)]
    if advising.timed:
        bench.time(tried[1:], original, classifier.configured, advising.timed)
    weights = decode_weights(classifier.engine.model, head=False)
    records = [summariser.record(each, classifier, weights) for each in tried]
    records += [summariser.not_tried(each, bench.model_name, classifier.model) for each in others]
    records += cascades(advising, bench, tried[1:], weights)
    for entry in ladder:
        records += try_model(advising, entry, tried)
    return records


def _planned(
    config: Config, model: Model, queries: TrialQueries, candidates: Sequence[Candidate]
) -> tuple[Planner, Planned, list[Planned], list[NotTried]]:
    """The planner for these queries, the original's plan, and the candidates that are worth trying and that are not."""
    planner = Planner(config, model, queries.texts)
    whole = planner.plan(Candidate(name=ORIGINAL, why="the configuration as it is", config=config))
    return planner, whole, *worth_trying(planner, candidates, whole)


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
        rows=rows,
        model_name=model_name(config.model),
    )


def _try_all(bench: Bench, config: Config, chosen: Sequence[Planned], planner: Planner, whole: Planned) -> list[Tried]:
    """Every candidate, each followed by the one with its losers apart where there is one."""
    found: list[Tried] = []
    for planned in chosen:
        tried = bench.try_one(planned, may_part=True)
        found.append(tried)
        if (apart := bench.part(config, tried, planner, whole)) is not None:
            found.append(apart)
    return found


def _wanted(settings: AdviceSettings, n_queries: int, notes: list[str]) -> Wanted | None:
    """What a cascade has to keep; none where none is wanted, or too few queries are there, which the notes say."""
    if settings.cascade is None:
        return None
    wanted = Wanted(agreement=settings.cascade)
    try:
        wanted.check(n_queries)
    except ConfigError as e:
        notes.append(f"no cascade is fitted: {e}")
        return None
    return wanted


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
