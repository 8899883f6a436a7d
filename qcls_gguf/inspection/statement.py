"""What a calibrated configuration states, in words that a person can sign."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..classifier import Classifier
from ..config.calibration_file import PromptCalibration, StatedError, StatedSets, StatementSource, read_calibration
from ..config.schema import short
from ..config.words import counted, shown
from ..errors import ConfigError
from ..report.document import Document, Paragraph, Section, percent
from ..report.record import Record
from ..score.result import ModelInfo
from ..statistics import wilson

_NOT_PROMISED = (
    "This holds for queries that come from where the rows came from, in the statistical sense that the rows and the "
    "query could have come in any order (exchangeability). It is a statement about such queries as a whole, not about "
    "single ones{groups}. It says nothing of queries of another kind, source or time, nor of what is right where the "
    "rows' labels are wrong. Another model file, prompt, label set or calibration is refused."
)


class StatementsRecord(Record):
    """What a configuration states of its answers."""

    config: str | None
    """its file"""
    calibration: str
    """the file with the statements"""
    statements: dict[str, str]
    """by prompt, a paragraph; prompts of which nothing is stated are not there"""


def statements_of(classifier: Classifier) -> StatementsRecord:
    """The statements of an open classifier, whose model and prompts they are for. Raises ConfigError without any."""
    config = classifier.config
    calibration = read_calibration(config)
    if calibration is None or calibration.stated is None:
        what = "states nothing: `qcls-gguf calibrate` with `target_error` or `sets` makes statements"
        raise ConfigError(f"calibration: {calibration.path if calibration else 'none'}: {what}")
    return StatementsRecord(
        config=None if config.path is None else str(config.path),
        calibration=str(calibration.path),
        statements={
            name: " ".join(_sentences(name, fit, calibration.stated, classifier.model))
            for name, fit in calibration.prompts.items()
            if fit.error or fit.sets
        },
    )


def _sentences(name: str, fit: PromptCalibration, stated: StatementSource, model: ModelInfo) -> Iterator[str]:
    n_rows = fit.error.n_rows if fit.error else fit.sets.n_rows if fit.sets else 0
    yield (
        f"Prompt {shown(name)}, stated on {stated.date} by qcls-gguf {stated.package_version} from "
        f"{counted(n_rows, 'labelled row')} of {stated.data} (sha256 {short(stated.data_sha256)}) with the model "
        f"{Path(model.path).name} (sha256 {short(model.sha256)})."
    )
    if fit.error:
        yield from _of_error(fit.error)
    if fit.sets:
        yield from _of_sets(fit.sets)
    if stated.n_duplicates:
        yield f"{counted(stated.n_duplicates, 'row')} repeated the query of another one, which makes this less sure."
    by_label = fit.sets is not None and fit.sets.asked.by_label
    yield _NOT_PROMISED.format(groups="" if by_label else ", labels or groups of queries by themselves")


def _of_error(error: StatedError) -> Iterator[str]:
    low, high = wilson(error.n_answered, error.n_rows) or (0.0, 1.0)
    rest = f", and all other queries get {shown(error.fallback)}" if error.threshold else ""
    yield f"Answers with a probability of at least {error.threshold:.4g} count{rest}."
    yield (
        f"So {error.n_answered} of the rows were answered ({percent(error.n_answered / error.n_rows)}, 95 % interval "
        f"{low:.1%} to {high:.1%}), {error.n_wrong} of them wrongly."
    )
    yield (
        f"With confidence {100 * error.confidence:.3g} % over the choice of the rows, at most "
        f"{100 * error.target:.3g} % of the answers that count are wrong among further queries; this pays for the "
        "search for the threshold, and is for this prompt alone."
    )


def _of_sets(sets: StatedSets) -> Iterator[str]:
    asked, by_label = sets.asked, " whichever label is right," if sets.asked.by_label else ""
    how = f"{asked.method}{', randomised' * asked.randomised}"
    yield (
        f"The set of labels beside each answer ({how}) holds a right label with probability at least "
        f"{100 * asked.coverage:.3g} %,{by_label} over the choice of the rows and the query together; on the rows sets "
        f"had {sets.mean_size:.2f} labels, {percent(sets.n_empty / sets.n_rows)} were empty and "
        f"{percent(sets.n_full / sets.n_rows)} full."
    )


def statements_document(record: StatementsRecord) -> Document:
    """A paragraph for each prompt."""
    parts = [Section(title=name, parts=[Paragraph(text)]) for name, text in record.statements.items()]
    return Document(title="Statements", parts=parts)
