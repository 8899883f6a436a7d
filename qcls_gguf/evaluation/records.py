"""The record of an evaluation: what `qcls-gguf eval` prints as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from ..config.prompt import LikelyMistake
from ..config.schema import Config
from ..config.scoring import Scoring
from ..config.words import MAX_LISTED
from ..data.labelled import BadRow, LabelledData
from ..report.environment import Environment
from ..report.record import Record, left_out_if_none
from ..score.result import ModelInfo
from .checks import CheckRecord


class NotApplicable(Record):
    """Why there are no statistics."""

    not_applicable: str
    """the reason"""


class DataRecord(Record):
    """The labelled queries."""

    path: str
    """the file"""
    sha256: str
    """of the file"""
    n_rows: int
    """rows that were used"""
    n_bad: int
    """rows that could not be used"""
    bad: tuple[BadRow, ...]
    """the first 20 of them"""


def data_record(data: LabelledData, n_rows: int, bad: Sequence[BadRow]) -> DataRecord:
    """Labelled queries of which n_rows were used and the `bad` ones could not be."""
    return DataRecord(
        path=str(data.path), sha256=data.sha256, n_rows=n_rows, n_bad=len(bad), bad=tuple(bad[:MAX_LISTED])
    )


class FittedRecord(Record):
    """Something that was fitted to labelled queries."""

    data: DataRecord
    model: ModelInfo
    warnings: tuple[LikelyMistake, ...]
    """likely mistakes in the prompts"""
    written: str | None
    """the file; null if nothing was written"""


class LabelMass(Record):
    """The probability that lies on a prompt's labels at all, over the rows."""

    mean: float
    """mean of the rows"""
    p10: float
    """10 % quantile"""
    min: float
    """smallest of the rows"""


class Coverage(Record):
    """The rows whose answer has at least a given probability."""

    threshold: float
    """the least probability of an answer"""
    n: int
    """number of the rows"""
    coverage: float | None
    """their share of all rows; null without rows"""
    accuracy: float | None
    """of those rows; null where there are none"""


class ReliabilityBin(Record):
    """The rows whose answer has a probability in [low, high); the last bin holds 1 too."""

    low: float
    """its lower end, included"""
    high: float
    """its upper end, not included"""
    n: int
    """rows in the bin"""
    confidence: float | None
    """mean probability of the answers; null for an empty bin"""
    accuracy: float | None
    """null for an empty bin"""


class Statistics(Record):
    """How well answers and probabilities fit the accepted labels; null where there are no rows."""

    n_rows: int
    """labelled rows"""
    accuracy: float | None
    """share of the rows whose answer is accepted"""
    accuracy_ci: tuple[float, float] | None
    """its Wilson 95 % interval"""
    macro_f1: float | None
    """mean F1 of the labels that are true or predicted in some row; over several prompts, the mean of their values"""
    log_loss: float | None
    """mean of -ln of the accepted labels' probability, in nats"""
    n_clipped: int
    """rows whose accepted labels have a probability below 1e-12, which counts as 1e-12"""
    brier: float | None
    """mean of (1 - p of the accepted labels)² + Σ p² of the others"""
    ece: float | None
    """expected calibration error over 15 bins of the answer's probability"""
    agreement_with_joint: float | None
    """share of the rows with the answer of `joint`; null where that was not computed"""
    label_mass: LabelMass | None
    """null where the exact scores were not computed"""
    coverage: tuple[Coverage, ...]
    """for thresholds of 0.5 to 0.99"""
    reliability: tuple[ReliabilityBin, ...]
    """15 bins of equal width"""


class LabelStatistics(Record):
    """How one label was answered."""

    precision: float | None
    """null where the label is never the answer"""
    recall: float | None
    """null where the label is never true"""
    f1: float | None
    """null where it is neither"""
    support: int
    """rows whose true label it is"""
    n_predicted: int
    """rows whose answer it is"""


class Confusion(Record):
    """Rows of one label that got another."""

    label: str
    """the true label: the first accepted one"""
    answer: str
    """the answer, which is not accepted"""
    n: int
    """number of rows"""


class PromptStatistics(Statistics):
    """The statistics of one prompt in one mode."""

    labels: dict[str, LabelStatistics]
    """by label, in the order of the configuration"""
    confusions: tuple[Confusion, ...]
    """the most frequent ones, most frequent first"""
    confusion_matrix: tuple[tuple[int, ...], ...]
    """rows of each true label (row) that got each label (column), in the order of `labels`"""


class ModeStatistics(Statistics):
    """The statistics of all rows of all prompts that can have the mode."""

    n_prompts: int
    """prompts that can have the mode"""
    prompts: dict[str, PromptStatistics | NotApplicable]
    """by prompt"""
    compared: Statistics | None = left_out_if_none()
    """over the prompts that every mode can score, if some mode cannot score all; compare modes by these"""


class WorstRow(Record):
    """A row whose accepted labels have a low probability."""

    mode: Scoring
    """the scoring"""
    prompt: str
    """the prompt's name"""
    line: int
    """line number in the data"""
    query: str
    """text of the query"""
    accepted: tuple[str, ...]
    """the accepted labels"""
    p_accepted: float
    """probability of the accepted labels together"""
    answer: str
    """the most probable label"""
    probability: float
    """of the answer"""


class EvaluationRecord(Record):
    """How well every scoring mode labels."""

    data: DataRecord
    config: Config
    model: ModelInfo
    warnings: tuple[LikelyMistake, ...]
    """likely mistakes in the prompts"""
    environment: Environment
    compared_prompts: tuple[str, ...] | None = left_out_if_none()
    """the prompts that every mode can score, where one cannot score them all"""
    modes: dict[str, ModeStatistics]
    """by scoring; `calibrated` where the configuration calibrates"""
    worst: tuple[WorstRow, ...]
    """for each mode ten rows, lowest probability first"""
    non_finite: tuple[BadRow, ...]
    """rows that are left out because their scores are not finite"""
    check: CheckRecord | None = left_out_if_none()
    """what the calibration states, on these rows; only where that was asked for"""
