"""`qcls-gguf run`: queries given, read or typed, labelled and printed as they come."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from ..data.queries import Columns, Line, check_source, count_lines, read_queries
from ..errors import ConfigError, QclsError
from .option_names import with_options
from .options import (
    ConfigOption,
    LayersOption,
    ModelOption,
    OfflineOption,
    RepoOption,
    ScoringOption,
    StateCacheOption,
    ThreadsOption,
    TryModelOption,
    settings,
)
from .terminal import EXIT_OTHER, exit_codes, load_bar, print_step, print_warning, say

if TYPE_CHECKING:
    from ..classifier import Classifier
    from ..report.answer_formats import AnswerWriter
    from ..report.progress import OnProgress


class Format(StrEnum):
    """How results are printed."""

    table = "table"
    json = "json"
    jsonl = "jsonl"
    labels = "labels"
    csv = "csv"
    tsv = "tsv"


_TOP = "top:"


def run_command(
    query: Annotated[
        list[str] | None, typer.Option("--query", "-q", metavar="TEXT", help="A query to label; repeatable.")
    ] = None,
    queries: Annotated[
        str | None,
        typer.Option(
            "--queries", metavar="FILE|-", help="A file with one query a line, or a table: .csv, .tsv, .jsonl."
        ),
    ] = None,
    query_column: Annotated[
        str | None,
        typer.Option("--query-column", metavar="NAME", help="The table's column of queries. Default: query."),
    ] = None,
    id_column: Annotated[
        str | None,
        typer.Option("--id", metavar="COLUMN", help="A column that identifies rows, instead of the line number."),
    ] = None,
    config: ConfigOption = None,
    model: ModelOption = None,
    hf_repo: RepoOption = None,
    offline: OfflineOption = False,
    no_state_cache: StateCacheOption = False,
    no_try_model: TryModelOption = False,
    n_gpu_layers: LayersOption = None,
    scoring: ScoringOption = None,
    audit: Annotated[
        bool, typer.Option("--audit", help="Add joint, mean and label mass, and whether joint picks another label.")
    ] = False,
    threads: ThreadsOption = None,
    format_: Annotated[
        Format, typer.Option("--format", "-f", help="How answers are printed: see above.")
    ] = Format.table,
    scores: Annotated[
        str | None,
        typer.Option(
            "--scores", metavar="none|top:K|all", help="The labels whose scores JSON contains. CSV: none or all."
        ),
    ] = None,
    header: Annotated[
        bool, typer.Option("--header", help="With jsonl: print a first line that describes the model.")
    ] = False,
    top: Annotated[
        int, typer.Option("--top", min=0, metavar="N", help="Labels of each prompt in the table; 0 shows all.")
    ] = 3,
    interactive: Annotated[
        bool, typer.Option("--interactive", "-I", help="On a terminal, ask for more queries after the given ones.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not print the start-up.")] = False,
) -> None:
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
    from ..classifier import Classifier  # see app.py for why here

    with exit_codes():
        if queries is not None:
            check_source(queries)
        columns = Columns(query=query_column, id=id_column)
        if columns.are_named and queries is None:
            raise ConfigError("--query-column and --id are for --queries, which is not given")
        n_scores = _n_scores(scores, format_)
        if header and format_ is not Format.jsonl:
            raise ConfigError(f"--header is for --format jsonl, not for {format_}")
        chosen = settings(
            config,
            model,
            hf_repo,
            n_gpu_layers,
            threads,
            scoring,
            no_state_cache=no_state_cache,
            no_try_model=no_try_model,
        )
        with Classifier.from_config(
            chosen, offline=offline, on_step=None if quiet else print_step, on_load=load_bar(quiet), audit=audit
        ) as classifier:
            for mistake in classifier.warnings:
                print_warning(mistake)
            only_one = len(query or ()) == 1 and queries is None and not interactive
            lines = _queries(query, queries, columns, interactive)
            writer = _writer(classifier, format_, top, n_scores, id_column, only_one=only_one, header=header)
            failed = _label(classifier, lines, writer, queries, quiet=quiet)
    if failed:
        raise typer.Exit(EXIT_OTHER)


def _n_scores(text: str | None, format_: Format) -> int | None:
    """How many labels keep their scores; None for all."""
    if text is None or text == "all":
        return None
    if format_ in (Format.table, Format.labels):
        raise ConfigError(f"--scores is not for --format {format_}: a table has --top N")
    if text == "none":
        return 0
    number = text.removeprefix(_TOP)
    if not text.startswith(_TOP) or not number.isdecimal() or int(number[:9]) < 1:
        raise ConfigError(f"--scores {text}: is not none, all or top:K with a whole number K from 1 on, as in top:3")
    if format_ in (Format.csv, Format.tsv):
        raise ConfigError(f"--scores {text}: {format_} has the answers' probabilities (all) or not (none): use jsonl")
    return int(number[:9])


def _writer(
    classifier: Classifier,
    format_: Format,
    n_top: int,
    n_scores: int | None,
    id_column: str | None,
    *,
    only_one: bool,
    header: bool,
) -> AnswerWriter:
    from ..report import answer_formats as formats

    if format_ is Format.table:
        return formats.Tables(n_top)
    if format_ is Format.json:
        return formats.JsonDocument(n_scores, only_one=only_one)
    if format_ is Format.jsonl:
        return formats.JsonLines(n_scores, header=classifier.model if header else None)
    if format_ is Format.labels:
        return formats.Labels()
    return formats.Rows(
        [prompt.name for prompt in classifier.prompts],
        delimiter="," if format_ is Format.csv else "\t",
        id_column=id_column,
        probabilities=n_scores != 0,
    )


def _queries(given: list[str] | None, source: str | None, columns: Columns, interactive: bool) -> Iterator[Line]:
    for text in given or []:
        yield Line(text)
    if source is not None:
        yield from read_queries(source, blank=True, columns=columns)
    if sys.stdin.isatty() and source != "-" and (interactive or not (given or source is not None)):
        yield from _ask()
    elif not (given or source is not None):
        yield from read_queries("-", blank=True)


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


def _label(
    classifier: Classifier, lines: Iterator[Line], writer: AnswerWriter, source: str | None, *, quiet: bool
) -> bool:
    """Label and print queries as they come; returns whether any failed."""
    from ..config.words import printable

    # where the answers scroll over the same terminal, they are the progress
    n_lines = None if source is None or quiet or sys.stdout.isatty() else count_lines(source)
    counts = {"labelled": 0, "failed": 0, "blank": 0}
    began = perf_counter()
    with _progress(n_lines) as on_progress:
        try:
            for line in lines:
                counts[_answer(classifier, line, writer, printable)] += 1
                if n_lines is not None and line.number is not None:
                    on_progress("labelling", min(line.number, n_lines), n_lines)
        finally:
            writer.close()
    if source is not None and not quiet:
        others = "".join(f", {n:,} {what}" for what, n in counts.items() if n and what != "labelled")
        say(f"labelled {counts['labelled']:,}{others}, in {perf_counter() - began:.1f} s")
    return counts["failed"] > 0


@contextmanager
def _progress(n_lines: int | None) -> Iterator[OnProgress]:
    """A bar where the number of lines is known; its library is not loaded where it is not."""
    if n_lines is None:
        yield lambda part, done, total: None
        return
    from .long_work import progress_bars

    with progress_bars(False) as on_progress:
        yield on_progress


def _answer(classifier: Classifier, line: Line, writer: AnswerWriter, printable: Callable[[str], str]) -> str:
    """Label and print a query; returns what became of it."""
    if line.number is not None and line.is_blank:
        writer.blank(line)
        return "blank"
    try:
        if line.error:
            raise QclsError(line.error)
        result = classifier.classify(line.text)
    except QclsError as e:
        place = "" if line.number is None or line.error else f"line {line.number}: "  # an error of the input says it
        say(f"qcls-gguf: {place}'{printable(line.text[:60])}': {printable(with_options(str(e)))}")
        writer.failure(line, str(e))
        return "failed"
    writer.result(line, result)
    return "labelled"
