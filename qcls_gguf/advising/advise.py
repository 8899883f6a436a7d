"""An advice: derive candidates from a configuration, ask all of them the same rows in turns, recommend one."""

from __future__ import annotations

import dataclasses
import hashlib
import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ..cascade import stamps
from ..config.prompt import PromptConfig
from ..config.schema import CascadeConfig, CascadeStage, Config, ModelConfig, StagePrompt
from ..config.words import counted
from ..data.labelled import PLAIN_COLUMNS, BadRow, LabelledColumns, LabelledData, LabelledQuery, read_labelled
from ..data.queries import QUERY, check_source, read_queries
from ..errors import ConfigError, ModelError, PlanError
from ..evaluation.records import data_record
from ..opening import ClassifierOpener, without_kept_queries
from ..report.environment import environment
from ..statistics.stated import proposed_thresholds, rows_for_agreement
from .answers import CONFIDENCE, Answers, ask, fit_cascade
from .candidates import Candidate, derive, given_candidate
from .comparison import STAGE_FILE, Contender, compared_record, recommendation, written
from .records import AdviceRecord, CascadeFit

PRESENT = "present"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceSettings:
    """What is compared, and on which rows: either `data` or `queries` is given."""

    config: Config
    """the present configuration"""
    data: Path | None = None
    """labelled rows, see read_labelled"""
    queries: Path | None = None
    """rows without labels, see read_queries"""
    columns: LabelledColumns = PLAIN_COLUMNS
    """which columns of them are read"""
    also: tuple[Config, ...] = ()
    """other configurations to compare: of each the model, if it names one, the prompts and their heads count"""
    min_agreement: float = 0.98
    """of each prompt's answers"""
    cascade: float | None = None
    """least agreement of a cascade with the present configuration, for each prompt; None: no cascade is fitted"""


def advise(settings: AdviceSettings, opener: ClassifierOpener) -> AdviceRecord:
    """Find the fastest configuration that still answers like the present one.

    Raises ConfigError for rows or configurations that cannot be used, before anything is computed, and what Classifier
    raises. What concerns single candidates is in the record.
    """
    config = dataclasses.replace(opener.rendered(settings.config), cascade=None)
    data = _read(settings, config.prompts)
    derived, notes = derive(config)
    candidates = [
        Candidate(name=PRESENT, why="the configuration as it is", config=config),
        *(_given(each, config, opener) for each in settings.also),
        *derived,
    ]
    names = [candidate.name for candidate in candidates]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"`also` {twice}: is the name of another candidate: rename the file")
    with ExitStack() as stack:
        contenders = _open(candidates, opener, stack, notes)
        answers, rows, bad = ask(opener, "ask", [each.classifier for each in contenders], data.rows)
        n_rows = len(rows)
        if settings.cascade is not None:
            try:
                contenders.append(_open_cascade(settings.cascade, contenders, answers, opener, stack))
            except (ConfigError, ModelError, PlanError) as e:
                notes.append(f"no cascade: {e}")
            else:
                second = rows[n_rows // 2 :]  # the first half proposed the thresholds
                classifiers = [each.classifier for each in contenders]
                answers, rows, more = ask(opener, "ask again, with the cascade", classifiers, second)
                bad += more
        bad = sorted([*data.bad, *bad], key=lambda row: row.line)
        compared = [
            compared_record(each, of_it, answers[0], rows, settings.min_agreement)
            for each, of_it in zip(contenders, answers, strict=True)
        ]
        best, reason = recommendation(compared, settings.min_agreement)
        return AdviceRecord(
            data=data_record(data, n_rows, bad),
            n_compared=len(rows),
            config=config,
            warnings=opener.warnings,
            environment=environment(config),
            min_agreement=settings.min_agreement,
            candidates=tuple(compared),
            recommended=None if best is None else best.name,
            reason=reason,
            notes=tuple(notes),
        )


def _read(settings: AdviceSettings, prompts: Sequence[PromptConfig]) -> LabelledData:
    """The rows, each text once, in random order, so that either half is like the other. Raises ConfigError."""
    if (settings.data is None) == (settings.queries is None):
        raise ConfigError("give either labelled rows as `data`, or rows without labels as `queries`")
    if settings.data is not None:
        called = f"`data` {settings.data}"
        found = read_labelled(settings.data, {prompt.name: prompt.labels for prompt in prompts}, settings.columns)
    else:
        called = f"`queries` {settings.queries}"
        found = _read_queries(str(settings.queries), settings.columns.query)
    if not found.rows:
        why = f": line {found.bad[0].line}: {found.bad[0].reason}" if found.bad else ": give one a line"
        raise ConfigError(f"{called}: has no rows that can be used{why}")
    rows = list({row.query: row for row in reversed(found.rows)}.values())
    random.Random(0).shuffle(rows)
    return dataclasses.replace(found, rows=tuple(rows))


def _read_queries(source: str, column: str) -> LabelledData:
    """Rows without labels. Raises ConfigError."""
    check_source(source)
    path = Path(source)
    if not path.is_file():
        raise ConfigError(f"`queries` {path}: cannot be read: name a plain file, which is read twice")
    lines = list(read_queries(source, query_column=None if column == QUERY else column))
    rows = [LabelledQuery(line=line.number or 0, query=line.text, labels={}) for line in lines if line.error is None]
    bad = [BadRow(line.number or 0, line.error) for line in lines if line.error is not None]
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return LabelledData(path=path, sha256=sha256, rows=tuple(rows), bad=tuple(bad))


def _given(other: Config, present: Config, opener: ClassifierOpener) -> Candidate:
    """A configuration that the user gives; without a model of its own it has the present one's."""
    model = present.model if other.model == ModelConfig() else other.model
    name = other.path.stem if other.path else "given"
    return given_candidate(name, opener.rendered(dataclasses.replace(other, model=model)), present)


def _open(
    candidates: Sequence[Candidate], opener: ClassifierOpener, stack: ExitStack, notes: list[str]
) -> list[Contender]:
    """The candidates that can be opened, each with a context of its own; notes get the others, with the reason.

    Raises what Classifier raises where the first one, the present configuration, cannot be opened.
    """
    contenders: list[Contender] = []
    for candidate in candidates:
        config = without_kept_queries(candidate.config)
        if contenders:  # warn of likely mistakes of the present prompts only
            config = dataclasses.replace(config, ignore_warnings=("all",))
        try:
            classifier = stack.enter_context(opener.open(config, quiet=bool(contenders)))
        except (ConfigError, ModelError, PlanError) as e:
            if not contenders:
                raise
            notes.append(f"{candidate.name} is not asked: {e}")
        else:
            contenders.append(Contender(candidate=candidate, classifier=classifier))
    return contenders


def _open_cascade(
    agreement: float,
    contenders: Sequence[Contender],
    answers: Sequence[Answers],
    opener: ClassifierOpener,
    stack: ExitStack,
) -> Contender:
    """The cascade of a candidate and the present configuration that is expected to be the fastest.

    Raises ConfigError for too few rows, and where no threshold is accepted; and what Classifier raises.
    """
    n_rows, n_needed = len(answers[0].ms), rows_for_agreement(agreement, CONFIDENCE)
    if n_rows < n_needed:
        raise ConfigError(
            f"{counted(n_rows, 'row')} are too few to prove an agreement of {agreement:.2%} with {CONFIDENCE:.0%} "
            f"confidence: {n_needed} are needed at least, half of them to propose thresholds"
        )
    present = contenders[0]
    others = list(zip(contenders[1:], answers[1:], strict=True))
    if not others:
        raise ConfigError("there is no candidate to ask first")
    first, stage_answers = min(others, key=lambda pair: _cascade_ms(answers[0], pair[1], agreement))
    thresholds = fit_cascade(answers[0], stage_answers, agreement)
    if not thresholds:
        raise ConfigError(f"no threshold of {first.candidate.name} is proven")
    config = _cascade_config(present, first, thresholds)
    assert config.cascade is not None
    candidate = Candidate(
        name=f"cascade of {first.candidate.name}",
        why=f"a cascade: {first.candidate.name} is asked first, the present configuration only where it is not sure; "
        f"answers agree with the present ones in at least {agreement:.1%} of unseen rows, for each prompt with "
        f"{CONFIDENCE:.0%} confidence",
        config=config,
    )
    fit = CascadeFit(
        stage=first.candidate.name,
        thresholds=thresholds,
        yaml=written(
            first.candidate.config, f"The first stage of a cascade, by `qcls-gguf advise`: {first.candidate.name}."
        ),
    )
    with TemporaryDirectory() as folder:
        file = Path(folder) / STAGE_FILE
        file.write_text(fit.yaml, encoding="utf-8")
        (stage,) = config.cascade.stages
        cascade = dataclasses.replace(config.cascade, stages=(dataclasses.replace(stage, config=file),))
        opened = opener.open(without_kept_queries(dataclasses.replace(config, cascade=cascade)), quiet=True)
    return Contender(candidate=candidate, classifier=stack.enter_context(opened), cascade=fit)


def _cascade_config(present: Contender, first: Contender, thresholds: Mapping[str, float]) -> Config:
    """The present configuration with a candidate as its first stage, whose file is still to be written."""
    stage_stamps = stamps(first.classifier.configured)
    stage = CascadeStage(
        config=Path(STAGE_FILE),
        model_sha256=first.classifier.model.sha256,
        prompts={
            name: StagePrompt(threshold=threshold, prompt_hash=stage_stamps[name])
            for name, threshold in thresholds.items()
        },
    )
    model = present.classifier.model.sha256
    cascade = CascadeConfig(stages=(stage,), model_sha256=model, prompt_hashes=stamps(present.classifier.configured))
    config = present.candidate.config
    runtime = config.runtime
    if runtime.n_ctx == "auto" and runtime.question_cells == "auto" and stage.model_sha256 == model:
        n_cells = sum(map(len, {prompt.prefix for prompt in first.classifier.prompts}))  # of the stage, in one context
        runtime = dataclasses.replace(runtime, question_cells=1024 + n_cells)
    return dataclasses.replace(config, runtime=runtime, cascade=cascade)


def _cascade_ms(present: Answers, stage: Answers, agreement: float) -> float:
    """About what a request of such a cascade would take on average, by the first half of the rows."""
    half = len(present.ms) // 2
    undecided = []
    for prompt in present.probability:
        sureness = stage.sureness(prompt)[:half]
        differs = (present.winners(prompt) != stage.winners(prompt))[:half]
        lowest = min(proposed_thresholds(sureness, differs, agreement), default=2.0)
        undecided.append(float((sureness < lowest).mean()))
    return float(stage.ms.mean() + np.mean(undecided) * present.ms.mean())
