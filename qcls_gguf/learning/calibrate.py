"""Calibration files: temperatures or stated errors from labelled rows, batch priors from queries without labels.

Rows that fit a temperature state nothing: a statement is of rows that fitted nothing else.

A batch prior is biases against labels that a prompt prefers whatever the text. With q the mean over the queries of a
prompt's probabilities, the bias of a label is -strength · ln q (Zhou et al. 2023, "Batch Calibration"; there the
strength is 1), less the mean over the labels. With strength 1 all labels become about equally frequent, which is wrong
where they are not: docs/real-models.md says what that costs.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from pydantic import Field

from ..config.fitted import (
    PromptCalibration,
    StatedError,
    StatementSource,
    answers_hash,
    calibration_text,
    check_model,
    headed,
    prompt_hash,
    query_digests,
    read_calibration,
)
from ..config.prompt import LikelyMistake, Prior, PromptConfig
from ..config.schema import Config, chosen_prompts
from ..config.scoring import Scoring
from ..config.words import counted, listed, shown
from ..data.labelled import PLAIN_COLUMNS, LabelledColumns, LabelledQuery
from ..data.rows import PLAIN, Reading, read_queries
from ..errors import ConfigError, PlanError
from ..evaluation.evaluate import FittedRecord, Truth, answer_rows, data_record, probabilities_of, read_rows, truth_of
from ..opening import ClassifierOpener
from ..report.document import TEXT, Document, Paragraph, Table, percent
from ..report.record import Record
from ..score.result import ModelInfo
from ..statistics import SMALLEST, FloatArray, upper_bound, wilson
from ..statistics.fitting import Step, cross_validate, error_thresholds, rows_needed
from ..version import __version__

LEAST_ROWS = 50
"""labelled rows: fewer than ten in each fold say too little of a fit"""
FALLBACK = "unsure"
_DIGITS = 6
"""Decimals of what is written."""


class FitRecord(Record):
    """The temperature of one prompt, and whether it was kept."""

    scoring: Scoring = Field(description="as configured")
    prior: Prior = Field(description="as configured")
    accepted: bool = Field(description="whether rows it has not seen have a lower log-loss by a standard error")
    temperature: float = Field(description="what the scores are divided by")
    n_rows: int = Field(description="rows that are labelled for the prompt")
    log_loss_before: float = Field(description="mean over the rows, in nats, of the uncalibrated scores")
    log_loss_after: float = Field(description="of rows by the fit to the other folds")
    standard_error: float = Field(description="of the mean of the difference")
    ece_before: float = Field(description="expected calibration error over 15 bins, of the uncalibrated scores")
    ece_after: float = Field(description="of rows by the fit to the other folds")


class CalibrationRecord(FittedRecord):
    """Temperatures fitted to labelled queries."""

    prompts: dict[str, FitRecord] = Field(description="by prompt")


class StatedPrompt(Record):
    """What is stated of one prompt's answers."""

    n_rows: int = Field(description="rows that are labelled for it")
    error_of_all: float = Field(description="share of them with a wrong answer")
    error: StatedError | None = Field(default=None, description="null where none can be stated")
    answered: float | None = Field(default=None, description="share of the rows that the threshold answers")
    answered_ci: tuple[float, float] | None = Field(default=None, description="its Wilson 95 % interval")
    bound: float | None = Field(default=None, description="Clopper and Pearson's of the error among them, by itself")
    wrong: dict[str, int] = Field(default={}, description="rows above the threshold with a wrong answer, by answer")
    refused: str | None = Field(default=None, description="why nothing can be stated")


class StatementRecord(FittedRecord):
    """Error rates, stated by labelled rows."""

    n_duplicates: int = Field(description="rows whose query came before")
    prompts: dict[str, StatedPrompt] = Field(description="by prompt")


def calibrate(
    config: Config,
    path: Path,
    opener: ClassifierOpener,
    *,
    names: Sequence[str] = (),
    columns: LabelledColumns = PLAIN_COLUMNS,
    skip_bad: bool = False,
) -> tuple[CalibrationRecord, str | None]:
    """Fit temperatures; the record that `qcls-gguf calibrate` prints as JSON, and the calibration file's text.

    path: labelled queries; names: prompts to fit, empty: all without a head.
    The text has the fits that were accepted, and is None where there are none. Nothing is written. Raises ConfigError
    for what cannot be fitted, before anything is computed; and what Classifier raises.
    """
    chosen = [prompt.name for prompt in prompts_to_fit(config, names)]

    def check_rows(rows: Sequence[LabelledQuery]) -> None:
        for name in chosen:
            labels = [row.labels[name] for row in rows if name in row.labels]
            what = f"`data` {path}: prompt {name}: has {len(labels)} labelled rows"
            if len(labels) < LEAST_ROWS:
                raise ConfigError(f"{what}, {LEAST_ROWS} are needed: label more, or name prompts to fit with `prompt`")
            if len({*labels}) == 1:
                raise ConfigError(f"{what}, all of them {shown(labels[0][0])}: give rows with other labels, too")

    data = read_rows(config, path, columns, skip_bad=skip_bad)
    check_rows(data.rows)
    with opener.open(config, calibrated=False) as classifier:  # the one that this replaces
        answered = answer_rows(classifier, data, opener, skip_bad=skip_bad, finite=True)
        prompts, adjustments, model = classifier.prompts, classifier.answer_maker.adjustments, classifier.model
    check_rows(answered.rows)  # again: the model may have refused some
    fits, entries = {}, {}
    for number in (number for number, prompt in enumerate(prompts) if prompt.name in chosen):
        prompt, prior = prompts[number].settings, adjustments[number].prior
        truth = truth_of(prompts[number], answered.rows)
        score = np.array([[score.score for score in answered.answers[row][number].scores] for row in truth.index])
        found = cross_validate(score if prior is None else score - prior, truth.accepted)
        fits[prompt.name] = fit = FitRecord(
            scoring=prompt.scoring,
            prior=prompt.prior,
            accepted=found.accepted,
            n_rows=len(score),
            **{**found._asdict(), "temperature": round(found.temperature, _DIGITS)},
        )
        if fit.accepted:
            told = fit.model_dump(include={"n_rows", "log_loss_before", "log_loss_after", "standard_error"})
            rounded = {name: round(number, _DIGITS) for name, number in told.items()}
            entries[prompt.name] = PromptCalibration(
                prompt_hash=prompt_hash(prompt), scoring=fit.scoring, temperature=fit.temperature, fit=rounded
            )
    record = CalibrationRecord(
        data=data_record(data, len(answered.rows), answered.bad), model=model, warnings=opener.warnings, prompts=fits
    )
    return record, calibration_text(model.sha256, entries) if entries else None


def prompts_to_fit(config: Config, names: Sequence[str]) -> list[PromptConfig]:
    """The named prompts, or all without a head where none is named.

    Raises ConfigError for an unknown name, a prompt with a head and a given temperature.
    """
    heads = headed(config)
    chosen = [prompt for prompt in chosen_prompts(config, names) if names or prompt.name not in heads]
    fitted = sorted(heads) if not chosen else [prompt.name for prompt in chosen if prompt.name in heads]
    if fitted:
        raise ConfigError(
            f"prompts.{fitted[0]}: has a head, which learn has calibrated: name prompts without one, or fit the "
            "labels' texts of a configuration without `heads`"
        )
    for prompt in chosen:
        if prompt.temperature is not None:
            raise ConfigError(
                f"prompts.{prompt.name}.temperature: {prompt.temperature:g} is given, and calibrate fits one: remove it"
            )
    return chosen


def calibration_document(record: CalibrationRecord) -> Document:
    """A row for each prompt: its log-loss and ECE before and on held-out rows, its temperature, and the verdict."""
    rows = []
    for name, fit in record.prompts.items():
        gain = fit.log_loss_before - fit.log_loss_after
        verdict = f"{'kept' if fit.accepted else 'refused'}: {gain:+.4f} ± {fit.standard_error:.4f}"
        measured = (fit.log_loss_before, fit.log_loss_after, fit.ece_before, fit.ece_after)
        rows.append([name, fit.n_rows, *measured, fit.temperature, verdict])
    columns = {
        "prompt": TEXT, "rows": "d", "log-loss": ".4f", "log-loss held out": ".4f", "ECE": ".4f", "ECE held out": ".4f",
        "temperature": ".3f", "verdict": ">",
    }  # fmt: skip
    return Document(title="Calibration", parts=[Table(columns=columns, rows=rows)])


def state(
    config: Config,
    path: Path,
    opener: ClassifierOpener,
    *,
    target_error: float,
    confidence: float = 0.95,
    fallback: str | None = None,
    names: Sequence[str] = (),
    columns: LabelledColumns = PLAIN_COLUMNS,
    skip_bad: bool = False,
) -> tuple[StatementRecord, str | None]:
    """State errors among answered queries; the record that `qcls-gguf calibrate` prints as JSON, and the file's text.

    path: labelled queries; confidence: of the statement, over the draw of the rows; fallback: the answer to all other
    queries, None: the prompt's own, else FALLBACK; names: prompts, empty: all.
    Temperatures and biases are those of the configuration and of its calibration file, which must be fitted to other
    rows. The text keeps them, and has what can be stated; it is None where nothing can. Raises ConfigError for what
    cannot be asked, before anything is computed; and what Classifier raises.
    """
    headed(config)
    chosen = [prompt.name for prompt in chosen_prompts(config, names)]
    data = read_rows(config, path, columns, skip_bad=skip_bad)
    for name in chosen:
        if not any(name in row.labels for row in data.rows):
            raise ConfigError(f"`data` {path}: no row is labelled for prompt {name}: name others")
    with opener.open(config, calibrated=False) as classifier:  # whose statements this replaces
        entries: dict[str, PromptCalibration] = {}
        if config.calibration is not None and config.calibration.exists():
            fitted = read_calibration(classifier.config.changed(calibration=config.calibration))
            assert fitted is not None
            check_model(config, classifier.model.sha256, fitted)
            classifier.core.run(classifier.calibrate, fitted)
            fits = {name: fit for name, fit in fitted.prompts.items() if fit.fits_scores}
            entries = {name: fit.changed(answers=None, error=None) for name, fit in fits.items()}
        answered = answer_rows(classifier, data, opener, skip_bad=skip_bad, finite=True)
        prompts, model = classifier.prompts, classifier.model
    stated: dict[str, StatedPrompt] = {}
    for number in (number for number, prompt in enumerate(prompts) if prompt.name in chosen):
        prompt, head, truth = prompts[number].settings, prompts[number].head, truth_of(prompts[number], answered.rows)
        p = probabilities_of([answered.answers[row][number] for row in truth.index])
        stated[prompt.name] = _stated(truth, p, target_error, confidence, fallback or prompt.fallback or FALLBACK)
        if stated[prompt.name].error is not None:
            fit = entries.get(prompt.name) or PromptCalibration(prompt_hash=prompt_hash(prompt), scoring=prompt.scoring)
            digest = answers_hash(prompt, fit, head.digest if head else None)
            entries[prompt.name] = fit.changed(answers=digest, error=stated[prompt.name].error)
    queries = [row.query for row in answered.rows]
    n_duplicates = len(queries) - len(set(queries))
    record = StatementRecord(
        data=data_record(data, len(queries), answered.bad),
        model=model,
        warnings=opener.warnings,
        n_duplicates=n_duplicates,
        prompts=stated,
    )
    source = StatementSource(
        data=path.name,
        data_sha256=data.sha256,
        date=datetime.now(UTC).date().isoformat(),
        package_version=__version__,
        n_rows=len(queries),
        n_duplicates=n_duplicates,
        queries=query_digests(queries),
    )
    has_stated = any(prompt.error for prompt in stated.values())
    return record, calibration_text(model.sha256, entries, source) if has_stated else None


def _stated(truth: Truth, p: FloatArray, target: float, confidence: float, fallback: str) -> StatedPrompt:
    """What is stated of one prompt; p: (n, n_labels) of its labelled rows."""
    rows, answer, n = np.arange(len(p)), p.argmax(axis=1), len(p)
    wrong = ~truth.accepted[rows, answer]
    steps = error_thresholds(p[rows, answer], wrong, target, confidence)
    best = next((step for step in reversed(steps) if step.accepted), None)
    if best is None:
        why = _why_no_threshold(steps, n, target, confidence)
        return StatedPrompt(n_rows=n, error_of_all=float(wrong.mean()), refused=why)
    of_wrong = Counter(truth.prompt.labels[place] for place in answer[wrong & (p[rows, answer] >= best.threshold)])
    return StatedPrompt(
        n_rows=n,
        error_of_all=float(wrong.mean()),
        error=StatedError(
            target=target,
            confidence=confidence,
            threshold=best.threshold,
            fallback=fallback,
            n_rows=n,
            n_answered=best.n_answered,
            n_wrong=best.n_wrong,
        ),
        answered=best.n_answered / n,
        answered_ci=wilson(best.n_answered, n),
        bound=upper_bound(best.n_wrong, best.n_answered, confidence),
        wrong=dict(of_wrong.most_common()),
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
    """A row for each prompt's error rate, the answers that are wrong most, and what is refused."""
    rows, titles, parts = [], dict[str, None](), []
    for name, prompt in record.prompts.items():
        if prompt.error:
            low, high = prompt.answered_ci or (0.0, 1.0)
            error, sure = prompt.error.target, prompt.error.confidence
            titles[f"Error among answered queries at most {error:.3g}, confidence {sure:.3g}"] = None
            rows.append([
                *(name, prompt.n_rows, prompt.error_of_all, prompt.error.threshold),
                *(f"{percent(prompt.answered)} ({low:.1%}–{high:.1%})", prompt.error.n_wrong, prompt.bound),
                prompt.error.fallback,
            ])  # fmt: skip
            if wrong := [f"{shown(label)} ({n})" for label, n in prompt.wrong.items()]:
                parts.append(Paragraph(f"{name}: answers that are wrong most: {listed(wrong, most=3)}"))
        else:
            parts.append(Paragraph(f"{name}: {prompt.refused}", "warning"))
    columns = {
        "prompt": TEXT, "rows": "d", "error of all": ".1%", "threshold": ".4f", "answered (95 %)": ">", "wrong": "d",
        "error below": ".1%", "the rest gets": TEXT,
    }  # fmt: skip
    if record.n_duplicates:
        what = f"{counted(record.n_duplicates, 'row')} with a query that came before: leave them out, unless queries"
        parts.append(Paragraph(f"{what} repeat so where the answers are used", "warning"))
    table = Table(columns=columns, rows=rows, title=" and ".join(titles))
    return Document(title="Statements", parts=[table, *parts])


LEAST_QUERIES = 50
_MOSTLY = 0.8
"""From this share of the answers to one label on, with a batch prior, queries say little about the others."""


class PromptPrior(Record):
    """The batch prior of one prompt."""

    scoring: Scoring = Field(description="as configured")
    bias: dict[str, float] = Field(description="by label, added to the scores")
    before: dict[str, float] = Field(description="by label, its share of the answers without the biases")
    after: dict[str, float] = Field(description="with them")


class BatchPriorRecord(Record):
    """Biases from unlabelled queries."""

    queries: str = Field(description="the file")
    n_queries: int = Field(description="queries that were labelled")
    n_left_out: int = Field(description="lines that have no query, or one that is too long")
    strength: float = Field(description="how much of the mean probabilities is taken away: 0 nothing, 1 all")
    model: ModelInfo
    warnings: tuple[LikelyMistake, ...] = Field(description="what is likely a mistake in the prompts")
    prompts: dict[str, PromptPrior] = Field(description="by prompt")


def fit_batch_prior(
    config: Config,
    queries: str,
    opener: ClassifierOpener,
    *,
    reading: Reading = PLAIN,
    names: Sequence[str] = (),
    strength: float = 0.75,
) -> tuple[BatchPriorRecord, str]:
    """The record that `qcls-gguf calibrate` prints as JSON for queries without labels, and the calibration file's text.

    queries: a file, or - for standard input; names: prompts, empty: all without a head.
    Raises ConfigError for fewer than LEAST_QUERIES queries and for what cannot be fitted; and what Classifier raises.
    """
    chosen = [prompt.name for prompt in prompts_to_fit(config, names)]
    lines = list(read_queries(queries, reading))
    answers = []
    with opener.open(config, calibrated=False) as classifier:
        for line in opener.progress("label", lines):
            if line.error is None:
                with suppress(PlanError):  # too long
                    answers.append(classifier.classify(line.text).results)
        model, compiled = classifier.model, classifier.prompts
    n_queries = len(answers)
    if n_queries < LEAST_QUERIES:
        raise ConfigError(f"`queries` {queries}: has {n_queries} queries, a prior needs {LEAST_QUERIES}")
    priors, entries, fit = {}, {}, {"n_queries": n_queries, "strength": strength}
    for number in (number for number, prompt in enumerate(compiled) if prompt.name in chosen):
        prompt = compiled[number].settings
        p = probabilities_of([results[number] for results in answers])
        log_mean = np.log(np.maximum(p.mean(axis=0), SMALLEST))
        bias = np.round(strength * (log_mean.mean() - log_mean), 6)
        by_label = dict(zip(prompt.labels, bias.tolist(), strict=True))
        priors[prompt.name] = PromptPrior(
            scoring=prompt.scoring,
            bias=by_label,
            before=dict(zip(prompt.labels, _shares(p), strict=True)),
            after=dict(zip(prompt.labels, _shares(p * np.exp(bias)), strict=True)),
        )
        entries[prompt.name] = PromptCalibration(
            prompt_hash=prompt_hash(prompt), scoring=prompt.scoring, temperature=1.0, bias=by_label, fit=fit
        )
    record = BatchPriorRecord(
        queries=queries, n_queries=n_queries, n_left_out=len(lines) - n_queries, strength=strength, model=model,
        warnings=opener.warnings, prompts=priors,
    )  # fmt: skip
    return record, calibration_text(model.sha256, entries)


def _shares(p: FloatArray) -> list[float]:
    """(n_labels,) the shares of the rows that the labels answer."""
    return list(map(float, np.bincount(p.argmax(axis=1), minlength=p.shape[1]) / len(p)))


def batch_prior_document(record: BatchPriorRecord) -> Document:
    """A row a label: its bias, and how often it answers without and with the biases; and what most queries have."""
    columns = {"prompt": TEXT, "label": TEXT, "bias": "+.3f", "answers before": ".1%", "after": ".1%"}
    rows = [
        [name, label, bias, prior.before[label], prior.after[label]]
        for name, prior in record.prompts.items()
        for label, bias in prior.bias.items()
    ]
    remedy = "if that is right, leave the prior out, which makes frequent labels rarer"
    warnings = [
        Paragraph(f"{name}: {share:.0%} of the answers stay {shown(label)}: {remedy}", "warning")
        for name, prior in record.prompts.items()
        for label, share in prior.after.items()
        if share >= _MOSTLY
    ]
    what = f"{counted(record.n_left_out, 'line')} left out: not valid, or too long"
    warnings += [Paragraph(what, "warning")] * (record.n_left_out > 0)
    return Document(title="Batch prior", parts=[Table(columns=columns, rows=rows), *warnings])
