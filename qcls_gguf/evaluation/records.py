"""The record of an evaluation: what `qcls-gguf eval` prints as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from ..config.prompt import LikelyMistake
from ..config.schema import Config
from ..config.words import MAX_LISTED
from ..data.labelled import BadRow, LabelledData
from ..report.environment import Environment
from ..report.record import Record, left_out_if_none
from ..score.result import ModelInfo


class DataRecord(Record):
    """The labelled queries."""

    path: str = Field(description="the file")
    sha256: str = Field(description="of the file")
    n_rows: int = Field(description="rows that were used")
    n_bad: int = Field(description="rows that could not be used")
    bad: tuple[BadRow, ...] = Field(description="the first 20 of them")


def data_record(data: LabelledData, n_rows: int, bad: Sequence[BadRow]) -> DataRecord:
    """Labelled queries of which n_rows were used and the `bad` ones could not be."""
    return DataRecord(
        path=str(data.path), sha256=data.sha256, n_rows=n_rows, n_bad=len(bad), bad=tuple(bad[:MAX_LISTED])
    )


class FittedRecord(Record):
    """Something that was fitted to labelled queries."""

    data: DataRecord
    model: ModelInfo
    warnings: tuple[LikelyMistake, ...] = Field(description="likely mistakes in the prompts")


class ReliabilityBin(Record):
    """The rows whose answer has a probability in one of 15 equal bins of [0, 1], in their order."""

    n: int = Field(description="rows in the bin")
    confidence: float | None = Field(description="mean probability of the answers; null for an empty bin")
    accuracy: float | None = Field(description="null for an empty bin")


class Statistics(Record):
    """How well answers and probabilities fit the accepted labels; null where there are no rows.

    An answer is the most probable label, whether or not a fallback replaces it. Over several prompts, balanced accuracy
    and macro-F1 are the means of theirs.
    """

    n_rows: int = Field(description="labelled rows")
    accuracy: float | None = Field(description="share of the rows whose answer is accepted")
    accuracy_ci: tuple[float, float] | None = Field(description="its Wilson 95 % interval")
    balanced_accuracy: float | None = Field(description="mean recall of the labels that are true in some row")
    majority: float | None = Field(description="the accuracy of the best single label for all rows of a prompt")
    macro_f1: float | None = Field(description="mean F1 of the labels that are true or predicted in some row")
    log_loss: float | None = Field(description="mean of -ln of the accepted labels' probability (at least 1e-12)")
    ece: float | None = Field(description="expected calibration error over 15 bins of the answer's probability")
    reliability: tuple[ReliabilityBin, ...] = Field(description="bins of equal width")


class LabelStatistics(Record):
    """How one label was answered."""

    precision: float | None = Field(description="null where the label is never the answer")
    recall: float | None = Field(description="null where the label is never true")
    support: int = Field(description="rows whose true label it is")
    n_predicted: int = Field(description="rows whose answer it is")


class Confusion(Record):
    """Rows of one label that got another."""

    label: str = Field(description="the true label: the first accepted one")
    answer: str = Field(description="the answer, which is not accepted")
    n: int = Field(description="number of rows")


class PromptStatistics(Statistics):
    """The statistics of one prompt."""

    prompt: str = Field(description="its name")
    n_abstained: int = Field(description="rows that the fallback answers")
    labels: dict[str, LabelStatistics] = Field(description="by label, in the order of the configuration")
    confusions: tuple[Confusion, ...] = Field(description="the most frequent ones, most frequent first")
    confusion_matrix: tuple[tuple[int, ...], ...] = Field(description="rows by true label and answer, as in `labels`")


class Check(Record):
    """The stated error of one prompt, on rows that its statement does not stand on."""

    prompt: str = Field(description="the prompt's name")
    stated: float = Field(description="the share of wrong answers among answered queries at most")
    n_rows: int = Field(description="rows that are labelled for the prompt")
    n_counted: int = Field(description="how many of these are answered")
    n_seen: int = Field(description="how many of these have a wrong answer")
    p_value: float = Field(description="how likely a share as bad as this is where the statement is true")
    holds: bool = Field(description="whether that is not too unlikely: at least 0.05 over the number of statements")
    power: float = Field(description="with which probability so many rows show that the error is twice the stated one")


class CheckRecord(Record):
    """The statements of a calibration file on other rows."""

    n_known: int = Field(description="rows that are left out, as their query was among the calibration's")
    checks: tuple[Check, ...]


class EvaluationRecord(Record):
    """How well a configuration labels: what `run` answers."""

    data: DataRecord
    config: Config
    model: ModelInfo
    warnings: tuple[LikelyMistake, ...] = Field(description="likely mistakes in the prompts")
    environment: Environment
    together: Statistics = Field(description="of the rows of all prompts")
    prompts: dict[str, PromptStatistics] = Field(description="by name")
    non_finite: tuple[BadRow, ...] = Field(description="rows that are left out because their scores are not finite")
    check: CheckRecord | None = left_out_if_none(
        "what the calibration states, on these rows; only where that was asked for"
    )
