"""`qcls-gguf run`: queries given, read or typed, labelled and printed as they come."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Literal

from ..config.words import printable
from ..data.rows import Row, check_queries, read_queries
from ..errors import ConfigError, QclsError
from .options import GivenQueries, ScoredModelOptions, command, option
from .terminal import EXIT_OTHER, classifier_opener, say, with_options

if TYPE_CHECKING:
    from ..classifier import Classifier
    from ..report.answers import AnswerWriter
    from ..score.result import Result


Format = Literal["table", "json", "jsonl", "labels", "csv", "tsv"]
_TOP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions(GivenQueries):
    """Which queries are labelled."""

    interactive: bool = option("--interactive -I", "On a terminal, ask for more queries after the given ones.", False)

    @property
    def is_one(self) -> bool:
        """Whether there is a single query."""
        return len(self.query) == 1 and self.queries is None and not self.interactive

    def lines(self) -> Iterator[Row]:
        """The queries as they come, also typed ones. Raises ConfigError."""
        yield from map(Row, self.query)
        if self.queries is not None:
            yield from read_queries(self.queries, self.reading, blank=True)
        nothing_given = not self.query and self.queries is None
        if sys.stdin.isatty() and self.queries != "-" and (self.interactive or nothing_given):
            yield from _ask()
        elif nothing_given:
            yield from read_queries("-", blank=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOptions:
    """How the answers are printed."""

    format: Format = option("--format -f", "How answers are printed: see below.", "table")
    top: int | None = option(
        "--top N", "Labels of each prompt that are shown; 0: all. Default: 3 in the table, all in JSON.", low=0
    )
    audit: bool = option("--audit", "Add joint, mean and label mass, and whether joint picks another label.", False)
    quiet: bool = option("--quiet", "Do not print the start-up.", False)

    def writer(self, classifier: Classifier, queries: QueryOptions) -> AnswerWriter:
        """What prints the answers."""
        from ..report import answers as formats

        match self.format:
            case "table":
                return formats.Tables(_TOP if self.top is None else self.top)
            case "json":
                return formats.JsonDocument(self.top or None, only_one=queries.is_one)
            case "jsonl":
                return formats.JsonLines(self.top or None)
            case "labels":
                return formats.Labels()
        names = [prompt.name for prompt in classifier.prompts]
        return formats.Rows(names, delimiter="," if self.format == "csv" else "\t")


@command
def run_command(queries: QueryOptions, answers: AnswerOptions, model: ScoredModelOptions) -> int | None:
    """Label queries by every prompt of a configuration.

    Without arguments the embedded model labels fashion queries by eight prompts: interactively on a terminal, or a
    query a line from standard input. Results go to standard output, everything else to standard error.

    --format labels is a line a query with its labels, csv and tsv have a row with the probabilities, jsonl an object a
    line with all scores, json one document: an object for a single --query, else a list. What comes from an input has
    its line number. A blank line is answered as a blank line. A query that cannot be labelled has an error in place of
    an answer, and the exit code is 1 in the end. Other exit codes: 2 for usage and configuration, 3 for a model that
    can't be loaded.

    \b
    qcls-gguf run --query "red dress for girls" --query "孕妇牛仔裤"
    qcls-gguf run --queries queries.txt --format csv > labels.csv
    qcls-gguf run --queries items.csv --query-column title --format jsonl --top 3 > labels.jsonl
    qcls-gguf run --config my.yaml -hf Qwen/Qwen3-8B-GGUF:Q4_K_M -ngl all
    """
    if queries.queries is not None:
        check_queries(queries.queries, queries.reading)
    elif queries.given:
        raise ConfigError(f"{queries.given} is for --queries, which is not given")
    if answers.top is not None and answers.format not in ("table", "json", "jsonl"):
        raise ConfigError(f"--top is not for --format {answers.format}")
    from ..config.schema import for_configured_prompts  # see app.py for why here

    config = model.settings()
    with (
        classifier_opener(model.offline, answers.quiet) as opener,
        opener.open(for_configured_prompts(config), audit=answers.audit) as classifier,
    ):
        writer = answers.writer(classifier, queries)
        return EXIT_OTHER if _label(classifier, queries, writer, quiet=answers.quiet) else None


def _ask() -> Iterator[Row]:
    with suppress(ImportError):
        import readline  # noqa: F401  (gives input() its line editing)

    print("Type a query; an empty line or Ctrl-D ends.", file=sys.stderr)
    while True:
        try:
            if sys.stdout.isatty():
                text = input("query> ")
            else:
                print("query> ", end="", file=sys.stderr, flush=True)
                text = input()
        except EOFError:
            print(file=sys.stderr)
            return
        if not text.strip():
            return
        yield Row(text)


def _label(classifier: Classifier, queries: QueryOptions, writer: AnswerWriter, *, quiet: bool) -> bool:
    """Label and print queries as they come; returns whether any failed."""
    from ..report.suspicions import AnswerSample  # see app.py for why here

    counts, sample = {"labelled": 0, "failed": 0, "blank": 0}, AnswerSample()
    began = perf_counter()
    try:
        for line in queries.lines():
            found = _answer(classifier, line, writer)
            counts[found if isinstance(found, str) else "labelled"] += 1
            if not isinstance(found, str):
                sample.add(found)
    finally:
        writer.close()
    if queries.queries is not None and not quiet:
        others = "".join(f", {n:,} {what}" for what, n in counts.items() if n and what != "labelled")
        say(f"labelled {counts['labelled']:,}{others}, in {perf_counter() - began:.1f} s")
        for why in sample.suspicions(classifier):
            say(printable(why))
    return counts["failed"] > 0


def _answer(classifier: Classifier, line: Row, writer: AnswerWriter) -> Result | str:
    """Label and print a query; returns what became of it, as a word where there is no result."""
    if line.number is not None and line.is_blank:
        writer.write(line, None)
        return "blank"
    try:
        if line.error:
            raise QclsError(line.error)
        result = classifier.classify(line.text)
    except QclsError as e:
        place = "" if line.number is None or line.error else f"line {line.number}: "  # an error of the input says it
        say(f"qcls-gguf: {place}'{printable(line.text[:60])}': {printable(with_options(str(e)))}")
        writer.write(line, str(e))
        return "failed"
    writer.write(line, result)
    return result
