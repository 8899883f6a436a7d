"""What answers show without labels: drift, whether they are still distributed like those of the rows of a
calibration's statements; and signs of wrong ones, which are warnings after a run over many queries.

docs/real-models.md says how often answers with such signs were mistakes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Self

import numpy as np

from ..classifier import Classifier
from ..config.calibration_file import read_calibration
from ..config.prompt import CONTENT_FREE_QUERIES, NO_CONTENT
from ..config.schema import Config
from ..config.words import shown
from ..core.handle import Labeller, n_query_tokens
from ..data.queries import check_queries, read_queries
from ..errors import ConfigError, PlanError
from ..opening import ClassifierOpener
from ..score.result import ModelInfo, PromptResult, Result
from ..statistics.drift import FALSE_ALARMS, WINDOW, DriftTest, length_bin, probability_bin
from .document import TEXT, Document, Facts, Section, Table
from .record import Record

_LEAST, _MOST = 50, 256
_ALIKE, _CHANGED = 0.95, 0.5


class PromptDrift(Record):
    """One prompt's answers, compared with the reference in windows of 500 queries."""

    prompt: str
    """the prompt's name"""
    n: int
    """queries that were compared"""
    n_windows: int
    """windows that were begun; each has an alarm with probability 0.01 at most where nothing has changed"""
    alarms: tuple[tuple[int, str], ...]
    """after how many queries, and what changed most: confidence, label, mass or length"""


def compared_values(answer: PromptResult, query: str) -> dict[str, int]:
    """The compared values of an answer, as bins: the best label's probability, which label it is, about how many tokens
    the query has, and the label mass if exact scores are known.
    """
    labels = [score.label for score in answer.scores]
    probabilities = [score.probability for score in answer.scores]
    values = {
        "confidence": probability_bin(max(probabilities)),
        "label": labels.index(answer.most_probable),
        "length": length_bin(n_query_tokens(query)),
    }
    return values if answer.audit is None else {**values, "mass": probability_bin(answer.audit.label_mass)}


def reference_of(answers: Iterable[tuple[PromptResult, str]]) -> dict[str, dict[int, int]]:
    """How often each value occurs, by what is compared; answers: with their queries."""
    found: dict[str, Counter[int]] = {}
    for answer, query in answers:
        for name, value in compared_values(answer, query).items():
            found.setdefault(name, Counter())[value] += 1
    return {name: dict(sorted(counts.items())) for name, counts in found.items()}


class DriftWatch:
    """Compares results with the reference as they come. Only one thread at a time may use it."""

    def __init__(self, references: Mapping[str, Mapping[str, Mapping[int, int]]]) -> None:
        """references: of each prompt, as `reference_of` gives them."""
        self.tests = {name: DriftTest(each, seed) for seed, (name, each) in enumerate(references.items())}
        self._changed: dict[str, list[str]] = {name: [] for name in references}

    @classmethod
    def of(cls, classifier: Classifier) -> Self | None:
        """For a classifier's configured prompts; None where its calibration has no reference."""
        calibration = read_calibration(classifier.config)
        fits = calibration.prompts.items() if calibration else ()
        found = {name: fit.reference for name, fit in fits if fit.reference}
        return cls(found) if found else None

    def add(self, result: Result) -> list[tuple[str, str]]:
        """Compare a result; the prompts that raise an alarm now, with what changed most."""
        found = []
        for answer in result.results:
            if (test := self.tests.get(answer.prompt)) and (what := test.add(compared_values(answer, result.query))):
                self._changed[answer.prompt].append(what)
                found.append((answer.prompt, what))
        return found

    def records(self) -> tuple[PromptDrift, ...]:
        """What was found up to now."""
        return tuple(
            PromptDrift(
                prompt=name,
                n=test.n,
                n_windows=test.n_windows,
                alarms=tuple(zip(test.alarms, self._changed[name], strict=True)),
            )
            for name, test in self.tests.items()
        )


class WatchRecord(Record):
    """Queries compared with the rows that a calibration was stated by."""

    queries: str
    """the file, or - for standard input"""
    n: int
    """queries that were labelled"""
    n_left_out: int
    """lines that could not be"""
    model: ModelInfo
    prompts: tuple[PromptDrift, ...]
    """the prompts for which the calibration has a reference"""


def watch(
    config: Config, queries: str, query_column: str | None, opener: ClassifierOpener, on_alarm: Callable[[str], None]
) -> WatchRecord:
    """Label the queries of a file, and compare the answers as they come.

    on_alarm: is told of each alarm, in words. Raises ConfigError for a calibration without a reference, and what
    `read_queries` and Classifier raise.
    """
    check_queries(queries, query_column)
    n = n_left_out = 0
    with opener.open(config) as classifier:
        if (drift := DriftWatch.of(classifier)) is None:
            what = "has no reference to compare with: make one with `qcls-gguf calibrate` and `target_error` or `sets`"
            raise ConfigError(f"calibration: {config.calibration or 'none'}: {what}")
        for line in read_queries(queries, query_column=query_column):
            try:
                if line.error:
                    raise PlanError(line.error)
                result = classifier.classify(line.text)
            except PlanError:
                n_left_out += 1
                continue
            n += 1
            for alarm in drift.add(result):
                on_alarm(f"after {n} queries: {alarm_text(*alarm)}")
        return WatchRecord(queries=queries, n=n, n_left_out=n_left_out, model=classifier.model, prompts=drift.records())


def watch_document(record: WatchRecord) -> Document:
    """A row for each prompt, and each alarm."""
    left_out = f", {record.n_left_out} left out" if record.n_left_out else ""
    return Document(
        title="Drift",
        parts=[
            Facts({"queries": f"{record.queries}: {record.n}{left_out}", "model": record.model.path}),
            drift_section(record.prompts),
        ],
    )


def alarm_text(prompt: str, what: str) -> str:
    """An alarm in words."""
    return f"{prompt}: {what} is unlike the calibration's rows: what that states may hold no more: `check_error` tells"


def drift_section(records: Iterable[PromptDrift]) -> Section:
    """A row for each prompt."""
    rows = [
        [each.prompt, each.n, each.n_windows, len(each.alarms), *(each.alarms[0] if each.alarms else (None, None))]
        for each in records
    ]
    columns = {"prompt": TEXT, "queries": "d", "windows": "d", "alarms": "d", "first after": "d", "changed": TEXT}
    note = (
        f"Windows of {WINDOW} queries; of those that are like the calibration's rows {FALSE_ALARMS:.0%} at most alarm."
    )
    return Section(title="Drift from the calibration's rows", parts=[Table(columns=columns, rows=rows, note=note)])


class AnswerSample:
    """Some answers of a run, evenly spread over it."""

    def __init__(self) -> None:
        self._results: list[Result] = []
        self._n_seen, self._every = 0, 1

    def add(self, result: Result) -> None:
        """Take an answer into account."""
        if self._n_seen % self._every == 0:
            self._results.append(result)
        self._n_seen += 1
        if len(self._results) > _MOST:
            self._results, self._every = self._results[::2], 2 * self._every

    def suspicions(self, prompts: Labeller) -> list[str]:
        """A sentence for each prompt that answers nearly all of the queries alike, or whose answers hang on what it
        prefers without a query. prompts: which gave the answers; they are asked some queries without content.
        """
        n, handle, found = len(self._results), prompts.handle, []
        if n < _LEAST:
            return []
        empty = [prompts.classify(query) for query in CONTENT_FREE_QUERIES]
        settings = zip(handle.compiled.settings, handle.compiled.heads, handle.adjustments, strict=True)
        for number, (prompt, head, adjustment) in enumerate(settings):
            answers = [result.results[number] for result in self._results]
            labels = Counter(each.label for each in answers if not each.abstained)
            label, most = max(labels.items(), key=lambda each: each[1], default=("", 0))
            # Labels such as `none` may be right for most queries, and for those without content.
            is_none = any(each.lower() in NO_CONTENT for each in prompt.labels)
            if most >= _ALIKE * n and label.lower() not in NO_CONTENT:
                what = f"{most / n:.0%} of {n} answers are {shown(label)}: if that cannot be, try another answer_cue"
                found.append(f"{prompt.name}: {what}, `prior: content_free`, or a larger model")
            elif head is None and adjustment.is_neutral and answers[0].stage is None and not is_none:
                p, q = (
                    np.array([[score.probability for score in each.scores] for each in several])
                    for several in (answers, [result.results[number] for result in empty])
                )
                other = p / np.maximum(q.mean(axis=0), 1e-12)
                if (changed := float(np.mean(p.argmax(axis=1) != other.argmax(axis=1)))) > _CHANGED:
                    what = f"{changed:.0%} of {n} answers change without what it prefers whatever the query"
                    found.append(f"{prompt.name}: {what}: try `prior: content_free`")
        return found
