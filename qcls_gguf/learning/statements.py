"""Statements about answers to unseen queries, by labelled rows that fitted nothing else, for the calibration file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np

from ..config.calibration_file import (
    Calibration,
    PromptCalibration,
    StatedError,
    StatedSets,
    StatementSource,
    answers_hash,
    calibration_text,
    prompt_hash,
    query_digests,
    read_calibration,
)
from ..config.prompt import LabelSets, PromptConfig
from ..config.schema import Config, chosen_prompts
from ..config.words import counted, shown
from ..core.loading import calibrate
from ..data.labelled import read_labelled
from ..errors import ConfigError
from ..evaluation.passes import Truth, truth_of, usable_rows
from ..evaluation.records import FittedRecord, data_record
from ..opening import ClassifierOpener
from ..report.document import TEXT, Document, Paragraph, Table, percent
from ..report.drift import reference_of
from ..report.record import Record
from ..score.adjustment import drawn, sets_of
from ..statistics import FloatArray, upper_bound, wilson
from ..statistics.stated import (
    Step,
    conformal_quantile,
    conformity_scores,
    error_thresholds,
    least_rows,
    rows_needed,
)
from ..version import __version__
from .calibrate import FitSettings

FALLBACK = "unsure"
_DIGITS = 6


class StatedPrompt(Record):
    """What is stated of one prompt's answers."""

    n_rows: int
    """rows that are labelled for it"""
    error_of_all: float
    """share of them with a wrong answer"""
    error: StatedError | None = None
    """null where no error rate was asked for, or none can be stated"""
    answered: float | None = None
    """share of the rows that the threshold answers"""
    answered_ci: tuple[float, float] | None = None
    """its Wilson 95 % interval"""
    bound: float | None = None
    """the error among them is below this, by Clopper and Pearson with the same confidence for this threshold alone"""
    sets: StatedSets | None
    """null where the prompt asks for none, or none can be stated"""
    refused: tuple[str, ...]
    """what cannot be stated, and why"""


class StatementRecord(FittedRecord):
    """Error rates and label sets, stated by labelled rows."""

    n_duplicates: int
    """rows whose query came before"""
    prompts: dict[str, StatedPrompt]
    """by prompt"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementRequest:
    """What is to be stated."""

    target_error: float | None = None
    """the error among answered queries; None: no threshold"""
    confidence: float = 0.95
    fallback: str | None = None
    """the answer to all other queries; None: the prompt's own, else FALLBACK"""


def state(
    settings: FitSettings, asked: StatementRequest, opener: ClassifierOpener
) -> tuple[StatementRecord, str | None]:
    """The record that `qcls-gguf calibrate` prints as JSON, and the calibration file's text.

    Temperatures and biases are those of the configuration and of its calibration file, which must be fitted to other
    rows. The text keeps them; it is None where something cannot be stated. Raises ConfigError for what cannot be
    asked, before anything is computed; and what Classifier raises.
    """
    settings.check()
    if settings.config.cascade:
        raise ConfigError("cascade: nothing is stated of a cascade's answers: remove it from the configuration")
    config = opener.rendered(settings.config)
    prompts = chosen_prompts(config, settings.names)
    if asked.target_error is None and not any(prompt.sets for prompt in prompts):
        raise ConfigError("`sets`: no prompt asks for label sets: write `sets: {coverage: 0.9}` into the configuration")
    data = read_labelled(settings.data, {each.name: each.labels for each in config.prompts}, settings.columns)
    for prompt in prompts:
        if not any(prompt.name in row.labels for row in data.rows):
            raise ConfigError(f"`data` {settings.data}: no row is labelled for prompt {prompt.name}: name others")
    fitted = _fits_alone(config)
    fits = fitted.prompts if fitted else {}
    plain = tuple(replace(each, min_confidence=None, fallback=None, sets=None) for each in config.prompts)
    with opener.open(replace(config, prompts=plain, calibration=None)) as classifier:
        if fitted:
            fitted.check_model(classifier.model.sha256)
            classifier.core.run(calibrate, classifier.core, classifier.configured, fitted)
        rows, bad = usable_rows(data, classifier, skip_bad=settings.skip_bad)
        results = [classifier.classify(row.query).results for row in opener.each("answer", rows)]
        handle, model = classifier.handle, classifier.model
    found: dict[str, StatedPrompt] = {}
    in_file = dict(fits)
    for number, prompt in enumerate(config.prompts):
        if prompt not in prompts:
            continue
        p = np.array([[score.probability for score in answers[number].scores] for answers in results])
        truth = truth_of(handle.prompts[number], rows)
        queries = [rows[index].query for index in truth.index]
        found[prompt.name] = stated = _stated(prompt, truth, p[truth.index], queries, asked)
        head, fit = handle.compiled.heads[number], fits.get(prompt.name)
        in_file[prompt.name] = replace(
            fit or PromptCalibration(prompt_hash=prompt_hash(prompt), scoring=prompt.scoring),
            answers=answers_hash(prompt, fit, head.digest if head else None),
            reference=reference_of((answers[number], row.query) for answers, row in zip(results, rows, strict=True)),
            error=stated.error,
            sets=stated.sets,
        )
    n_duplicates = len(rows) - len({row.query for row in rows})
    refused = any(each.refused for each in found.values())
    record = StatementRecord(
        data=data_record(data, len(rows), bad),
        model=model,
        warnings=opener.warnings,
        written=None if refused else str(settings.out),
        n_duplicates=n_duplicates,
        prompts=found,
    )
    source = StatementSource(
        data=settings.data.name,
        data_sha256=data.sha256,
        date=datetime.now(UTC).date().isoformat(),
        package_version=__version__,
        n_rows=len(rows),
        n_duplicates=n_duplicates,
        queries=query_digests(row.query for row in rows),
    )
    return record, None if refused else calibration_text(model.sha256, in_file, source)


def _fits_alone(config: Config) -> Calibration | None:
    """The temperatures and biases of the configuration's calibration file, without statements; None where it is not
    there.

    Raises ConfigError for a file that is not for these prompts.
    """
    found = read_calibration(config) if config.calibration and config.calibration.exists() else None
    return found and replace(
        found,
        prompts={
            name: replace(fit, answers=None, reference=None, error=None, sets=None)
            for name, fit in found.prompts.items()
            if fit.fits_scores
        },
    )


def _stated(
    prompt: PromptConfig, truth: Truth, p: FloatArray, queries: Sequence[str], asked: StatementRequest
) -> StatedPrompt:
    """What is stated of one prompt; p: (n, n_labels) of its labelled rows."""
    each, answer, n = np.arange(len(p)), p.argmax(axis=1), len(p)
    wrong, refused = ~truth.accepted[each, answer], []
    best = error = None
    if (target := asked.target_error) is not None:
        steps = error_thresholds(p[each, answer], wrong, target, asked.confidence)
        best = next((step for step in reversed(steps) if step.accepted), None)
        if best is None:
            refused.append(_why_no_threshold(steps, n, target, asked.confidence))
        else:
            error = StatedError(
                target=target,
                confidence=asked.confidence,
                threshold=best.threshold,
                fallback=asked.fallback or prompt.fallback or FALLBACK,
                n_rows=n,
                n_answered=best.n_answered,
                n_wrong=best.n_wrong,
            )
    sets = _sets(prompt.sets, truth, p, queries, refused) if prompt.sets else None
    return StatedPrompt(
        n_rows=n,
        error_of_all=float(wrong.mean()),
        error=error,
        answered=best and best.n_answered / n,
        answered_ci=best and wilson(best.n_answered, n),
        bound=best and upper_bound(best.n_wrong, best.n_answered, asked.confidence),
        sets=sets,
        refused=tuple(refused),
    )


def _why_no_threshold(steps: Sequence[Step], n: int, target: float, confidence: float) -> str:
    needed = rows_needed(n, steps, target, confidence)
    what = f"no threshold keeps the error at {target:.3g} with confidence {confidence:.3g}"
    if not steps:
        return f"{what}: {n} labelled rows are too few, {needed} are needed if none of them is wrong"
    best = min(steps, key=lambda step: step.n_wrong / max(step.n_answered, 1))
    seen = f"{best.n_wrong} of the {best.n_answered} surest rows are wrong"
    if needed is None:
        return (
            f"{what}: {seen}, which more rows do not change: try `learn`, a better prompt or model, or a larger share"
        )
    return f"{what}: {seen}; if errors stay as frequent, about {needed} rows are needed, and there are {n}"


def _sets(
    asked: LabelSets, truth: Truth, p: FloatArray, queries: Sequence[str], refused: list[str]
) -> StatedSets | None:
    """The thresholds of a prompt's label sets; None, with the reason in `refused`, for too few rows."""
    labels, first = truth.prompt.labels, truth.first
    scores = conformity_scores(p, asked.method, drawn(queries) if asked.randomised else 1.0)
    groups = {"": np.where(truth.accepted, scores, np.inf).min(axis=1)}
    if asked.by_label:
        groups = {label: scores[first == i, i] for i, label in enumerate(labels)}
    least = least_rows(asked.coverage)
    if few := {label: len(own) for label, own in groups.items() if len(own) < least}:
        has = ", ".join(f"{shown(label)} {n}" if label else f"{n}" for label, n in few.items())
        of = " of each label" if asked.by_label else ""
        refused.append(f"sets with coverage {asked.coverage:g} need {least} rows{of}: there are {has}")
        return None
    thresholds = tuple(conformal_quantile(own, asked.coverage) for own in groups.values())
    sets = StatedSets(asked=asked, thresholds=thresholds, n_rows=len(p), n_empty=0, n_full=0, mean_size=0.0)
    size = sets_of(sets, p, queries).sum(axis=1)
    return replace(
        sets,
        n_empty=int((size == 0).sum()),
        n_full=int((size == len(labels)).sum()),
        mean_size=round(float(size.mean()), _DIGITS),
    )


def statement_document(record: StatementRecord) -> Document:
    """A row for each prompt's error rate, one for each prompt's sets, and what is refused."""
    errors, sets, titles = [], [], dict[str, None]()
    for name, each in record.prompts.items():
        if each.error:
            low, high = each.answered_ci or (0.0, 1.0)
            error, sure = each.error.target, each.error.confidence
            titles[f"Error among answered queries at most {error:.3g}, confidence {sure:.3g}"] = None
            errors.append([
                *(name, each.n_rows, each.error_of_all, each.error.threshold),
                *(f"{percent(each.answered)} ({low:.1%}–{high:.1%})", each.error.n_wrong, each.bound),
                each.error.fallback,
            ])  # fmt: skip
        if each.sets:
            found = each.sets
            how = found.asked.method + ", randomised" * found.asked.randomised + ", by label" * found.asked.by_label
            shares = (found.n_empty / found.n_rows, found.n_full / found.n_rows)
            sets.append([name, found.n_rows, how, found.asked.coverage, found.mean_size, *shares])
    return Document(
        title="Statements",
        parts=[
            Table(
                columns={
                    "prompt": TEXT, "rows": "d", "error of all": ".1%", "threshold": ".4f",
                    "answered (95 %)": ">", "wrong": "d", "error below": ".1%", "the rest gets": TEXT,
                },
                rows=errors,
                title=" and ".join(titles),
            ),
            Table(
                columns={
                    "prompt": TEXT, "rows": "d", "sets": TEXT, "coverage": ".3g", "labels a set": ".2f",
                    "empty": ".1%", "full": ".1%",
                },
                rows=sets,
            ),
            *(Paragraph(f"{name}: {why}", "warning") for name, each in record.prompts.items() for why in each.refused),
            Paragraph(
                f"{counted(record.n_duplicates, 'row')} with a query that came before: leave them out, unless queries "
                "repeat so where the answers are used",
                "warning",
            )
            if record.n_duplicates
            else None,
        ],
    )  # fmt: skip
