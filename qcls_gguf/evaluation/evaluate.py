"""An evaluation from its data to its record: rows → answers → probabilities → statistics, and the record's types.

qcls_gguf/statistics has the formulas. A row's true label, in the confusion matrix, recall and F1, is its answer if that
is accepted, else the first accepted one.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from .. import statistics as stats
from ..classifier import Classifier
from ..config.fitted import known_queries, queries_of_heads, read_calibration
from ..config.prompt import LikelyMistake
from ..config.schema import Config
from ..config.words import MAX_LISTED
from ..data.labelled import PLAIN_COLUMNS, BadRow, LabelledColumns, LabelledData, LabelledQuery, read_labelled, refusal
from ..errors import PlanError, ScoreError
from ..opening import ClassifierOpener
from ..prompts.compiled import Prompt
from ..report.environment import Environment, environment
from ..report.record import Record
from ..score.result import ModelInfo, PromptResult
from ..statistics import BoolArray, FloatArray, IntArray
from ..statistics.logistic import cross_fit_words, folds


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """The accepted labels of the n rows that are labelled for a prompt."""

    prompt: Prompt
    index: IntArray
    """(n,) which of all rows these are"""
    accepted: BoolArray
    """(n, n_labels)"""
    first: IntArray
    """(n,) the label that a row names first"""


def truth_of(prompt: Prompt, rows: Sequence[LabelledQuery]) -> Truth:
    """The accepted labels of a prompt by row."""
    labelled = [(index, row.labels[prompt.name]) for index, row in enumerate(rows) if prompt.name in row.labels]
    accepted = [[label in names for label in prompt.labels] for _, names in labelled]
    return Truth(
        prompt=prompt,
        index=np.array([index for index, _ in labelled], np.intp),
        accepted=np.array(accepted, np.bool_).reshape(-1, len(prompt.labels)),
        first=np.array([prompt.labels.index(names[0]) for _, names in labelled], np.intp),
    )


def read_rows(config: Config, path: Path, columns: LabelledColumns, *, skip_bad: bool) -> LabelledData:
    """The labelled queries of a file for a configuration's prompts. Raises ConfigError as `usable_rows` does."""
    data = read_labelled(path, {prompt.name: prompt.labels for prompt in config.prompts}, columns)
    usable_rows(data, skip_bad=skip_bad)
    return data


def usable_rows(
    data: LabelledData, classifier: Classifier | None = None, *, skip_bad: bool
) -> tuple[list[LabelledQuery], list[BadRow]]:
    """The rows that can be used and the others: as they were read, and those whose query the classifier would refuse.

    Nothing is computed. Raises ConfigError for rows that cannot be used, unless they are to be left out and others
    remain.
    """
    bad = list(data.bad)
    for row in data.rows if classifier else ():
        try:
            classifier.check(row.query)  # type: ignore[union-attr]
        except PlanError as e:
            bad.append(BadRow(row.line, str(e)))
    bad.sort(key=lambda row: row.line)
    n_rows = len(data.rows) + len(data.bad)
    if bad and (not skip_bad or len(bad) == n_rows):
        raise refusal(data.path, bad, n_rows)
    lines = {row.line for row in bad}
    return [row for row in data.rows if row.line not in lines], bad


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The usable rows of a file, and what a classifier answers to them."""

    rows: list[LabelledQuery]
    answers: list[tuple[PromptResult, ...]]
    """of the rows, an answer a prompt"""
    bad: list[BadRow]
    """rows that could not be used"""
    non_finite: list[BadRow]
    """rows whose scores are not finite"""


def answer_rows(
    classifier: Classifier, data: LabelledData, opener: ClassifierOpener, *, skip_bad: bool, finite: bool = False
) -> Answered:
    """Ask the rows one by one, as `run` does.

    Raises as `usable_rows` does, DecodeError, and ScoreError where no row has finite scores, or, with `finite`, one has
    not.
    """
    usable, bad = usable_rows(data, classifier, skip_bad=skip_bad)
    answered = Answered(rows=[], answers=[], bad=bad, non_finite=[])
    for row in opener.progress("score", usable):
        try:
            answered.answers.append(classifier.classify(row.query).results)
            answered.rows.append(row)
        except ScoreError as e:
            answered.non_finite.append(BadRow(row.line, str(e)))
    if answered.non_finite and (finite or not answered.rows):
        lines = ", ".join(str(row.line) for row in answered.non_finite)
        raise ScoreError(f"`data` {data.path}: scores that are not finite: lines {lines}: leave these rows out")
    return answered


def probabilities_of(answers: Sequence[PromptResult]) -> FloatArray:
    """(n_rows, n_labels) the probabilities of one prompt's labels, as answered."""
    return np.array([[score.probability for score in answer.scores] for answer in answers], np.float64)


def raw_scores(answers: Sequence[PromptResult]) -> FloatArray:
    """(n_rows, n_labels) the uncalibrated scores in answers of one prompt."""
    return np.array([[score.score for score in answer.scores] for answer in answers], np.float64)


_LEAST_READ, _MOST_READ = 20, 2000
"""rows of a model of words"""


class DataRecord(Record):
    """The labelled queries."""

    path: str = Field(description="the file")
    sha256: str = Field(description="of the file")
    n_rows: int = Field(description="rows that were used")
    n_bad: int = Field(description="rows that could not be used")
    bad: tuple[BadRow, ...] = Field(description="the first 20 of them")
    n_contradictions: int = Field(description="queries that stand in several rows with different labels")


def data_record(data: LabelledData, n_rows: int, bad: Sequence[BadRow]) -> DataRecord:
    """Labelled queries of which n_rows were used and the `bad` ones could not be."""
    return DataRecord(
        path=str(data.path), sha256=data.sha256, n_rows=n_rows, n_bad=len(bad), bad=tuple(bad[:MAX_LISTED]),
        n_contradictions=_n_contradictions(data.rows),
    )  # fmt: skip


def _n_contradictions(rows: Sequence[LabelledQuery]) -> int:
    """Queries with different labels of one prompt in several rows."""
    labels: dict[tuple[str, str], set[tuple[str, ...]]] = defaultdict(set)
    for row in rows:
        for name, accepted in row.labels.items():
            labels[row.query, name].add(accepted)
    return len({query for (query, _), several in labels.items() if len(several) > 1})


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


class PromptStatistics(Statistics):
    """The statistics of one prompt."""

    prompt: str = Field(description="its name")
    n_abstained: int = Field(description="rows that the fallback answers")
    n_wrong: int = Field(description="of the other rows those whose answer is not accepted")
    labels: dict[str, LabelStatistics] = Field(description="by label, in the order of the configuration")
    confusion_matrix: tuple[tuple[int, ...], ...] = Field(description="rows by true label and answer, as in `labels`")


class EvaluationRecord(Record):
    """How well a configuration labels: what `run` answers."""

    data: DataRecord
    config: Config
    model: ModelInfo
    warnings: tuple[LikelyMistake, ...] = Field(description="likely mistakes in the prompts")
    environment: Environment
    together: Statistics = Field(description="of the rows of all prompts")
    prompts: dict[str, PromptStatistics] = Field(description="by name")
    words: dict[str, float | None] = Field(
        description="by prompt, the accuracy of a linear model of words, fitted to other rows; null for fewer than 20"
    )
    n_known: int = Field(description="rows whose queries heads were learnt from or errors stated by: too good figures")
    non_finite: tuple[BadRow, ...] = Field(description="rows that are left out because their scores are not finite")


def evaluate(
    config: Config,
    path: Path,
    opener: ClassifierOpener,
    *,
    columns: LabelledColumns = PLAIN_COLUMNS,
    skip_bad: bool = False,
) -> EvaluationRecord:
    """Evaluate, and return the record that `qcls-gguf eval` prints as JSON.

    path: labelled queries, see read_labelled; skip_bad: leave out rows that cannot be used, instead of refusing them.
    Raises ConfigError for data that cannot be used, before anything is computed; and what Classifier raises.
    """
    learnt_from = queries_of_heads(config)  # a file that is missing is told before the model is loaded
    data = read_rows(config, path, columns, skip_bad=skip_bad)
    with opener.open(config) as classifier:
        calibration = read_calibration(classifier.config)
        known = (learnt_from, calibration.stated.queries if calibration and calibration.stated else "")
        answered = answer_rows(classifier, data, opener, skip_bad=skip_bad)
        rows, model = answered.rows, classifier.model
        queries = [row.query for row in rows]
        truths = [truth_of(prompt, rows) for prompt in classifier.prompts]
    by_prompt = zip(truths, zip(*answered.answers, strict=True), strict=True)
    found = [prompt_statistics(truth, probabilities_of(answers), answers) for truth, answers in by_prompt]
    return EvaluationRecord(
        data=data_record(data, len(rows), answered.bad),
        config=config,
        model=model,
        warnings=opener.warnings,
        environment=environment(config),
        together=joint_statistics(found),
        prompts={statistics.prompt: statistics for statistics, _ in found},
        words={truth.prompt.name: word_accuracy(truth, queries) for truth in truths},
        n_known=sum(map(any, zip(*(known_queries(digests, queries) for digests in known), strict=True))),
        non_finite=tuple(answered.non_finite),
    )


def word_accuracy(truth: Truth, queries: Sequence[str]) -> float | None:
    """The accuracy of a linear model of words, each row's answer by the fit to others; None where these are too few.

    queries: of all rows.
    """
    label, n_labels = truth.first[:_MOST_READ], len(truth.prompt.labels)
    if len(label) < _LEAST_READ or len(set(label.tolist())) < 2:
        return None
    texts = [queries[row] for row in truth.index[:_MOST_READ]]
    found = cross_fit_words(texts, np.eye(n_labels)[label], folds(label, texts))
    return float(stats.right_answers(found.log_p, truth.accepted).mean())


class Outcomes(NamedTuple):
    """The values of the rows from which statistics are computed; every array is (n_rows,)."""

    confidence: FloatArray
    """the answer's probability"""
    right: BoolArray
    """whether the answer is accepted"""
    p_accepted: FloatArray
    """probability of the accepted labels together"""
    constant: BoolArray
    """whether the label that is accepted by most rows is accepted"""


def prompt_statistics(
    truth: Truth, p: FloatArray, answers: Sequence[PromptResult] | None = None
) -> tuple[PromptStatistics, Outcomes]:
    """The statistics of one prompt, and the outcomes of the rows that they are of.

    p: (n_rows, n_labels) the probabilities of all rows; answers: to all rows, if there are any, for fallbacks.
    """
    index, accepted, labels = truth.index, truth.accepted, truth.prompt.labels
    p, rows, answer = p[index], np.arange(len(index)), p[index].argmax(axis=1)
    outcomes = Outcomes(
        confidence=p[rows, answer],
        right=accepted[rows, answer],
        p_accepted=np.minimum(np.where(accepted, p, 0).sum(axis=1), 1),
        constant=accepted[:, accepted.sum(axis=0).argmax()],
    )
    abstained = np.array([answers is not None and answers[row].abstained for row in index], np.bool_)
    matrix = stats.confusion_matrix(np.where(outcomes.right, answer, truth.first), answer, len(labels))
    f1, support = stats.f1_scores(matrix), matrix.sum(axis=1)
    recall = matrix.diagonal()[support > 0] / support[support > 0]
    found = _statistics(outcomes, balanced=stats.mean(recall), macro_f1=stats.mean(f1[np.isfinite(f1)]))
    return PromptStatistics(
        **dict(found),
        prompt=truth.prompt.name,
        n_abstained=int(abstained.sum()),
        n_wrong=int((~outcomes.right & ~abstained).sum()),
        labels={label: _label(matrix, place) for place, label in enumerate(labels)},
        confusion_matrix=tuple(map(tuple, matrix.tolist())),
    ), outcomes


def joint_statistics(found: Sequence[tuple[PromptStatistics, Outcomes]]) -> Statistics:
    """The statistics of all rows of at least one prompt; balanced accuracy and macro-F1 are means over the prompts."""
    balanced, f1 = [prompt.balanced_accuracy for prompt, _ in found], [prompt.macro_f1 for prompt, _ in found]
    return _statistics(
        Outcomes(*map(np.concatenate, zip(*(outcomes for _, outcomes in found), strict=True))),
        balanced=stats.mean([value for value in balanced if value is not None]),
        macro_f1=stats.mean([value for value in f1 if value is not None]),
    )


def _statistics(rows: Outcomes, *, balanced: float | None, macro_f1: float | None) -> Statistics:
    n = len(rows.right)
    bins = zip(*stats.reliability(rows.confidence, rows.right), strict=True)
    return Statistics(
        n_rows=n,
        accuracy=stats.mean(rows.right),
        accuracy_ci=stats.wilson(int(rows.right.sum()), n),
        balanced_accuracy=balanced,
        majority=stats.mean(rows.constant),
        macro_f1=macro_f1,
        log_loss=stats.mean(stats.log_losses(rows.p_accepted)),
        ece=stats.calibration_error(rows.confidence, rows.right),
        reliability=tuple(
            ReliabilityBin(
                n=int(count),
                confidence=float(confidence) if count else None,
                accuracy=float(accuracy) if count else None,
            )
            for count, confidence, accuracy in bins
        ),
    )


def _label(matrix: npt.NDArray[np.int64], place: int) -> LabelStatistics:
    n_right, support, n_predicted = matrix[place, place], int(matrix[place].sum()), int(matrix[:, place].sum())
    return LabelStatistics(
        precision=float(n_right / n_predicted) if n_predicted else None,
        recall=float(n_right / support) if support else None,
        support=support,
        n_predicted=n_predicted,
    )
