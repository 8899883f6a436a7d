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
    StatementSource,
    answers_hash,
    calibration_text,
    prompt_hash,
    query_digests,
    read_calibration,
)
from ..config.prompt import PromptConfig
from ..config.schema import Config, chosen_prompts
from ..config.words import counted
from ..core.loading import calibrate
from ..data.labelled import read_labelled
from ..errors import ConfigError
from ..evaluation.passes import Truth, truth_of, usable_rows
from ..evaluation.records import FittedRecord, data_record
from ..opening import ClassifierOpener
from ..report.document import TEXT, Document, Paragraph, Table, percent
from ..report.record import Record
from ..statistics import FloatArray, upper_bound, wilson
from ..statistics.stated import Step, error_thresholds, rows_needed
from ..version import __version__
from .calibrate import FitSettings

FALLBACK = "unsure"


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
    refused: str | None
    """why nothing can be stated"""


class StatementRecord(FittedRecord):
    """Error rates, stated by labelled rows."""

    n_duplicates: int
    """rows whose query came before"""
    prompts: dict[str, StatedPrompt]
    """by prompt"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementRequest:
    """What is to be stated."""

    target_error: float
    """the error among answered queries"""
    confidence: float = 0.95
    fallback: str | None = None
    """the answer to all other queries; None: the prompt's own, else FALLBACK"""


def state(
    settings: FitSettings, asked: StatementRequest, opener: ClassifierOpener
) -> tuple[StatementRecord, str | None]:
    """The record that `qcls-gguf calibrate` prints as JSON, and the calibration file's text.

    Temperatures and biases are those of the configuration and of its calibration file, which must be fitted to other
    rows. The text keeps them, and has what can be stated; it is None where nothing can. Raises ConfigError for what
    cannot be asked, before anything is computed; and what Classifier raises.
    """
    settings.check()
    config = opener.rendered(settings.config)
    prompts = chosen_prompts(config, settings.names)
    data = read_labelled(settings.data, {each.name: each.labels for each in config.prompts}, settings.columns)
    for prompt in prompts:
        if not any(prompt.name in row.labels for row in data.rows):
            raise ConfigError(f"`data` {settings.data}: no row is labelled for prompt {prompt.name}: name others")
    fitted = _fits_alone(config)
    fits = fitted.prompts if fitted else {}
    plain = tuple(each.changed(min_confidence=None, fallback=None) for each in config.prompts)
    with opener.open(config.changed(prompts=plain, calibration=None)) as classifier:
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
        found[prompt.name] = stated = _stated(prompt, truth, p[truth.index], asked)
        if stated.error is None:
            continue
        head, fit = handle.compiled.heads[number], fits.get(prompt.name)
        fit = fit or PromptCalibration(prompt_hash=prompt_hash(prompt), scoring=prompt.scoring)
        in_file[prompt.name] = fit.changed(
            answers=answers_hash(prompt, fit, head.digest if head else None),
            error=stated.error,
        )
    n_duplicates = len(rows) - len({row.query for row in rows})
    has_stated = any(stated.error for stated in found.values())
    record = StatementRecord(
        data=data_record(data, len(rows), bad),
        model=model,
        warnings=opener.warnings,
        written=str(settings.out) if has_stated else None,
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
    return record, calibration_text(model.sha256, in_file, source) if has_stated else None


def _fits_alone(config: Config) -> Calibration | None:
    """The temperatures and biases of the configuration's calibration file, without statements; None where it is not
    there.

    Raises ConfigError for a file that is not for these prompts.
    """
    found = read_calibration(config) if config.calibration and config.calibration.exists() else None
    return found and replace(
        found,
        prompts={name: fit.changed(answers=None, error=None) for name, fit in found.prompts.items() if fit.fits_scores},
    )


def _stated(prompt: PromptConfig, truth: Truth, p: FloatArray, asked: StatementRequest) -> StatedPrompt:
    """What is stated of one prompt; p: (n, n_labels) of its labelled rows."""
    rows, answer, n = np.arange(len(p)), p.argmax(axis=1), len(p)
    wrong = ~truth.accepted[rows, answer]
    steps = error_thresholds(p[rows, answer], wrong, asked.target_error, asked.confidence)
    best = next((step for step in reversed(steps) if step.accepted), None)
    if best is None:
        why = _why_no_threshold(steps, n, asked.target_error, asked.confidence)
        return StatedPrompt(n_rows=n, error_of_all=float(wrong.mean()), refused=why)
    return StatedPrompt(
        n_rows=n,
        error_of_all=float(wrong.mean()),
        error=StatedError(
            target=asked.target_error,
            confidence=asked.confidence,
            threshold=best.threshold,
            fallback=asked.fallback or prompt.fallback or FALLBACK,
            n_rows=n,
            n_answered=best.n_answered,
            n_wrong=best.n_wrong,
        ),
        answered=best.n_answered / n,
        answered_ci=wilson(best.n_answered, n),
        bound=upper_bound(best.n_wrong, best.n_answered, asked.confidence),
        refused=None,
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


def statement_document(record: StatementRecord) -> Document:
    """A row for each prompt's error rate, and what is refused."""
    errors, titles = [], dict[str, None]()
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
            *(Paragraph(f"{name}: {each.refused}", "warning") for name, each in record.prompts.items() if each.refused),
            Paragraph(
                f"{counted(record.n_duplicates, 'row')} with a query that came before: leave them out, unless queries "
                "repeat so where the answers are used",
                "warning",
            )
            if record.n_duplicates
            else None,
        ],
    )  # fmt: skip
