"""Which queries to label next: those whose answers are least certain, none of them nearly the same text as another."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..config.schema import Config
from ..config.words import counted
from ..data.labelled import PLAIN_COLUMNS, LabelledColumns, LabelledQuery, read_labelled
from ..data.queries import QUERY, read_queries
from ..errors import ConfigError
from ..evaluation.passes import refused_queries
from ..opening import ClassifierOpener
from ..report.document import TEXT, Document, Paragraph, Table
from ..report.files import check_writable
from ..report.record import Record
from ..score.result import ModelInfo, Result
from ..statistics import FloatArray

_MOST_QUERIES = 20_000
"""Of more queries so many are looked at, chosen at random."""


class Suggestion(Record):
    """A query that is worth a label."""

    query: str
    """its text"""
    answers: dict[str, str]
    """the configuration's own, by prompt"""
    probabilities: dict[str, float]
    """of these answers"""


class SuggestRecord(Record):
    """Queries to label next."""

    queries: str
    """the file, or - for standard input"""
    n_queries: int
    """different ones that are not labelled yet"""
    n_asked: int
    """how many of these were asked"""
    n_refused: int
    """how many the configuration refuses, such as too long ones"""
    model: ModelInfo
    suggestions: tuple[Suggestion, ...]
    """the one that tells most first"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestSettings:
    """From which queries how many are suggested."""

    config: Config
    queries: str
    """as read_queries takes them"""
    n: int
    query_column: str | None = None
    data: Path | None = None
    """labelled queries, which are not suggested again, see read_labelled"""
    columns: LabelledColumns = PLAIN_COLUMNS
    seed: int = 0
    out: Path
    """the table of queries to label"""
    force: bool = False
    """overwrite a file that is at `out`"""


def suggest(settings: SuggestSettings, opener: ClassifierOpener) -> SuggestRecord:
    """Ask the configuration, with its heads, and choose. Raises ConfigError, and what Classifier raises."""
    config = settings.config
    inputs = {"`data`": settings.data, "`queries`": Path(settings.queries), "the configuration": config.path}
    check_writable(settings.out, "`out`", inputs, force=settings.force)
    lines = read_queries(settings.queries, query_column=settings.query_column)
    labels = {prompt.name: prompt.labels for prompt in config.prompts}
    done = read_labelled(settings.data, labels, settings.columns).rows if settings.data else ()
    labelled = {row.query for row in done if row.labels}
    texts = [text for text in dict.fromkeys(line.text for line in lines if not line.error) if text not in labelled]
    if not texts:
        raise ConfigError(f"`queries` {settings.queries}: has no query that is not labelled yet")
    some = np.sort(np.random.default_rng(settings.seed).permutation(len(texts))[:_MOST_QUERIES])
    rows = [LabelledQuery(line=int(index), query=texts[index], labels={}) for index in some]
    with opener.open(config) as classifier:
        refused = {row.line for row in refused_queries(classifier, rows)}
        asked = [row.query for row in rows if row.line not in refused]
        n_together = classifier.config.runtime.max_batch
        parts = [asked[start : start + n_together] for start in range(0, len(asked), n_together)]
        results = [result for part in opener.each("ask", parts) for result in classifier.classify_batch(part)]
        model = classifier.model
    chosen = choose(asked, uncertainty(results), settings.n)
    return SuggestRecord(
        queries=settings.queries,
        n_queries=len(texts),
        n_asked=len(asked),
        n_refused=len(refused),
        model=model,
        suggestions=tuple(
            Suggestion(
                query=asked[index],
                answers={answer.prompt: answer.label for answer in results[index].results},
                probabilities={answer.prompt: answer.probability for answer in results[index].results},
            )
            for index in chosen
        ),
    )


def uncertainty(results: Sequence[Result]) -> FloatArray:
    """(n,) 1 less the distance between the two most probable labels, the mean over the prompts."""
    found = []
    for result in results:
        two = [sorted(score.probability for score in answer.scores)[-2:] for answer in result.results]
        found.append(np.mean([1 - (best - second) for second, best in two]))
    return np.array(found, np.float64)


def choose(queries: Sequence[str], uncertain: FloatArray, n: int) -> list[int]:
    """The indices of n queries, most uncertain first; queries that differ only in digits, marks or case count as one.

    uncertain: (n_queries,). Choosing queries that are also far from each other, by the angle between hidden states, did
    not help: docs/learn.md.
    """
    chosen: dict[str, int] = {}
    for index in np.argsort(-uncertain, kind="stable").tolist():
        words = re.sub(r"[\W\d_]+", " ", queries[index].casefold()).strip()
        chosen.setdefault(words or queries[index], index)
    return list(chosen.values())[:n]


def suggest_document(record: SuggestRecord) -> Document:
    """The queries with the answers that they have now."""
    names = list(record.suggestions[0].answers) if record.suggestions else []
    rows = [
        [each.query, *(f"{each.answers[name]} {each.probabilities[name]:.0%}" for name in names)]
        for each in record.suggestions
    ]
    less = [f"{counted(record.n_refused, 'query', 'queries')} refused"] if record.n_refused else []
    if record.n_asked + record.n_refused < record.n_queries:
        less.append(f"{record.n_asked} of {record.n_queries} queries looked at")
    return Document(
        title="Queries to label",
        parts=[
            Table(columns={"query": TEXT, **dict.fromkeys(names, TEXT)}, rows=rows),
            *(Paragraph(text, "faint") for text in less),
        ],
    )


def to_label(record: SuggestRecord, names: Sequence[str]) -> str:
    """A table that `qcls-gguf learn` takes as data: the queries, and for each prompt an empty column."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow([QUERY, *names])
    writer.writerows([each.query, *("" for _ in names)] for each in record.suggestions)
    return table.getvalue()
