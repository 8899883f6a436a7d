"""`qcls-gguf run`: queries given, read or typed, labelled and printed as they come."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Literal

from ..config.words import printable
from ..data.queries import Columns, Line, check_source, count_lines, read_queries
from ..errors import ConfigError, QclsError
from .options import GivenQueries, ScoredModelOptions, command, option
from .terminal import EXIT_OTHER, classifier_opener, progress_bars, say, with_options

if TYPE_CHECKING:
    from ..classifier import Classifier
    from ..report.answers import AnswerWriter


Format = Literal["table", "json", "jsonl", "labels", "csv", "tsv"]
_TOP = "top:"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions(GivenQueries):
    """Which queries are labelled."""

    id: str | None = option("--id COLUMN", "A column that identifies rows, instead of the line number.")
    interactive: bool = option("--interactive -I", "On a terminal, ask for more queries after the given ones.", False)

    @property
    def is_one(self) -> bool:
        """Whether there is a single query."""
        return len(self.query) == 1 and self.queries is None and not self.interactive

    def lines(self) -> Iterator[Line]:
        """The queries as they come, those that are typed included. Raises ConfigError."""
        yield from map(Line, self.query)
        if self.queries is not None:
            columns = Columns(query=self.query_column, id=self.id)
            yield from read_queries(self.queries, blank=True, columns=columns)
        nothing_given = not self.query and self.queries is None
        if sys.stdin.isatty() and self.queries != "-" and (self.interactive or nothing_given):
            yield from _ask()
        elif nothing_given:
            yield from read_queries("-", blank=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOptions:
    """How the answers are printed."""

    format: Format = option("--format -f", "How answers are printed: see below.", "table")
    scores: str | None = option("--scores none|top:K|all", "The labels whose scores JSON contains. CSV: none or all.")
    header: bool = option("--header", "With jsonl: print a first line that describes the model.", False)
    top: int = option("--top N", "Labels of each prompt in the table; 0 shows all.", 3, low=0)
    audit: bool = option("--audit", "Add joint, mean and label mass, and whether joint picks another label.", False)
    quiet: bool = option("--quiet", "Do not print the start-up.", False)

    def writer(self, classifier: Classifier, queries: QueryOptions) -> AnswerWriter:
        """What prints the answers."""
        from ..report import answers as formats

        n_scores = _n_scores(self.scores, self.format)
        if self.format == "table":
            return formats.Tables(self.top)
        if self.format == "json":
            return formats.JsonDocument(n_scores, only_one=queries.is_one)
        if self.format == "jsonl":
            return formats.JsonLines(n_scores, header=classifier.model if self.header else None)
        if self.format == "labels":
            return formats.Labels()
        return formats.Rows(
            [prompt.name for prompt in classifier.prompts],
            delimiter="," if self.format == "csv" else "\t",
            id_column=queries.id,
            probabilities=n_scores != 0,
        )


@command
def run_command(queries: QueryOptions, answers: AnswerOptions, model: ScoredModelOptions) -> int | None:
    """Label queries by every prompt of a configuration.

    Without arguments the embedded model labels fashion queries by eight prompts: interactively on a terminal, or a
    query a line from standard input. Results go to standard output, everything else to standard error.

    --format labels is a line a query with its labels, csv and tsv have a row with the probabilities, jsonl an object a
    line with all scores, json one document: an object for a single --query, else a list. What comes from an input has
    its line number, or the --id column. A blank line is answered as a blank line. A query that cannot be labelled has
    an error in place of an answer, and the exit code is 1 in the end. Other exit codes: 2 for usage and configuration,
    3 for a model that can't be loaded.

    \b
    qcls-gguf run --query "red dress for girls" --query "孕妇牛仔裤"
    qcls-gguf run --queries queries.txt --format csv > labels.csv
    qcls-gguf run --queries items.csv --query-column title --id sku --format jsonl --scores top:3 > labels.jsonl
    qcls-gguf run --config my.yaml -hf Qwen/Qwen3-8B-GGUF:Q4_K_M -ngl all
    """
    if queries.queries is not None:
        check_source(queries.queries)
    elif queries.query_column is not None or queries.id is not None:
        raise ConfigError("--query-column and --id are for --queries, which is not given")
    _n_scores(answers.scores, answers.format)  # before a model is loaded
    if answers.header and answers.format != "jsonl":
        raise ConfigError(f"--header is for --format jsonl, not for {answers.format}")
    config = model.settings()
    with (
        classifier_opener(model.offline, answers.quiet) as opener,
        opener.open(config, audit=answers.audit) as classifier,
    ):
        writer = answers.writer(classifier, queries)
        return EXIT_OTHER if _label(classifier, queries, writer, quiet=answers.quiet) else None


def _n_scores(text: str | None, format_: Format) -> int | None:
    """How many labels keep their scores; None for all."""
    if text is None or text == "all":
        return None
    if format_ in ("table", "labels"):
        raise ConfigError(f"--scores is not for --format {format_}: a table has --top N")
    if text == "none":
        return 0
    number = text.removeprefix(_TOP)
    if not text.startswith(_TOP) or not number.isdecimal() or int(number[:9]) < 1:
        raise ConfigError(f"--scores {text}: is not none, all or top:K with a whole number K from 1 on, as in top:3")
    if format_ in ("csv", "tsv"):
        raise ConfigError(f"--scores {text}: {format_} has the answers' probabilities (all) or not (none): use jsonl")
    return int(number[:9])


def _ask() -> Iterator[Line]:
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
        yield Line(text)


def _label(classifier: Classifier, queries: QueryOptions, writer: AnswerWriter, *, quiet: bool) -> bool:
    """Label and print queries as they come; returns whether any failed."""
    source = queries.queries
    # where the answers scroll over the same terminal, they are the progress
    n_lines = None if source is None or quiet or sys.stdout.isatty() else count_lines(source)
    counts = {"labelled": 0, "failed": 0, "blank": 0}
    began = perf_counter()
    with progress_bars(n_lines is None) as on_progress:
        try:
            for line in queries.lines():
                counts[_answer(classifier, line, writer)] += 1
                if n_lines is not None and line.number is not None:
                    on_progress("labelling", min(line.number, n_lines), n_lines)
        finally:
            writer.close()
    if source is not None and not quiet:
        others = "".join(f", {n:,} {what}" for what, n in counts.items() if n and what != "labelled")
        say(f"labelled {counts['labelled']:,}{others}, in {perf_counter() - began:.1f} s")
    return counts["failed"] > 0


def _answer(classifier: Classifier, line: Line, writer: AnswerWriter) -> str:
    """Label and print a query; returns what became of it."""
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
    return "labelled"
