"""What a calibrated configuration states, in words that a person can sign."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..classifier import Classifier
from ..config.calibration_file import StatedError, StatementSource, read_calibration
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
    "single ones, labels or groups of queries by themselves. It says nothing of queries of another kind, source or "
    "time, nor of what is right where the rows' labels are wrong. Another model file, prompt, label set or calibration "
    "is refused."
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
        what = "states nothing: `qcls-gguf calibrate` with `target_error` makes statements"
        raise ConfigError(f"calibration: {calibration.path if calibration else 'none'}: {what}")
    return StatementsRecord(
        config=None if config.path is None else str(config.path),
        calibration=str(calibration.path),
        statements={
            name: " ".join(_sentences(name, fit.error, calibration.stated, classifier.model))
            for name, fit in calibration.prompts.items()
            if fit.error
        },
    )


def _sentences(name: str, error: StatedError, stated: StatementSource, model: ModelInfo) -> Iterator[str]:
    yield (
        f"Prompt {shown(name)}, stated on {stated.date} by qcls-gguf {stated.package_version} from "
        f"{counted(error.n_rows, 'labelled row')} of {stated.data} (sha256 {short(stated.data_sha256)}) with the model "
        f"{Path(model.path).name} (sha256 {short(model.sha256)})."
    )
    yield from _of_error(error)
    if stated.n_duplicates:
        yield f"{counted(stated.n_duplicates, 'row')} repeated the query of another one, which makes this less sure."
    yield _NOT_PROMISED


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


def statements_document(record: StatementsRecord) -> Document:
    """A paragraph for each prompt."""
    parts = [Section(title=name, parts=[Paragraph(text)]) for name, text in record.statements.items()]
    return Document(title="Statements", parts=parts)
