"""`qcls-gguf run`: queries given, read or typed, labelled and printed as they come."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Context, Option

from ..config.words import printable
from ..data.rows import Reading, Row, check_queries, read_queries
from ..errors import ConfigError, QclsError
from . import options as o
from .terminal import EXIT_OTHER, classifier_opener, say, shown

if TYPE_CHECKING:
    from ..classifier import Classifier
    from ..report.answers import AnswerWriter

_TOP = 3


def run(
    ctx: Context, query: o.Query = None, queries: o.Queries = None, query_column: o.QueryColumn = None,
    input_format: o.InputFormat = None, encoding: o.Encoding = None, delimiter: o.Delimiter = None,
    interactive: Annotated[bool, Option("--interactive", "-I",
        help="On a terminal, ask for more queries after the given ones.")] = False,
    format: Annotated[Literal["table", "json", "jsonl", "labels", "csv", "tsv"], Option("--format", "-f",
        help="How answers are printed: see below.")] = "table",
    top: Annotated[int | None, Option("--top", metavar="N", min=0,
        help="Labels of a prompt that are shown; 0: all. Default: 3 in the table, all in JSON.")] = None,
    audit: Annotated[bool, Option("--audit",
        help="Add joint, mean and label mass, and whether joint picks another label.")] = False,
    quiet: o.Quiet = False, verbose: o.Verbose = False, config: o.ConfigFile = None, model: o.ModelName = None,
    hf_repo: o.Repository = None, offline: o.Offline = False, n_gpu_layers: o.GpuLayers = None,
    n_threads: o.Threads = None, max_query_tokens: o.QueryTokens = None, long_queries: o.LongQueries = None,
    scoring: o.ScoringName = None,
) -> int | None:  # fmt: skip
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
    reading = o.reading(ctx.params)
    if queries is not None:
        check_queries(queries, reading)
    elif reading != Reading():
        raise ConfigError("--query-column, --input-format, … are for --queries, which is not given")
    if top is not None and format not in ("table", "json", "jsonl"):
        raise ConfigError(f"--top is not for --format {format}")
    from ..report.answers import AnswerWriter

    settings = o.configured(ctx.params)

    def lines() -> Iterator[Row]:
        yield from map(Row, query or ())
        if queries is not None:
            yield from read_queries(queries, reading, blank=True)
        nothing_given = not query and queries is None
        if sys.stdin.isatty() and queries != "-" and (interactive or nothing_given):
            yield from _ask()
        elif nothing_given:
            yield from read_queries("-", blank=True)

    is_one = len(query or ()) == 1 and queries is None and not interactive
    with (
        classifier_opener(offline, quiet) as opener,
        opener.open(settings, audit=audit, only_configured=True) as classifier,
    ):
        names = [prompt.name for prompt in classifier.prompts]
        n_top = _TOP if top is None and format == "table" else top
        writer = AnswerWriter(format, names, n_top=n_top, only_one=is_one)
        counts, began = {"labelled": 0, "failed": 0, "blank": 0}, perf_counter()
        try:
            for line in lines():
                counts[_answer(classifier, line, writer)] += 1
        finally:
            writer.close()
        if queries is not None and not quiet:
            others = "".join(f", {n:,} {what}" for what, n in counts.items() if n and what != "labelled")
            say(f"labelled {counts['labelled']:,}{others}, in {perf_counter() - began:.1f} s")
    return EXIT_OTHER if counts["failed"] else None


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


def _answer(classifier: Classifier, line: Row, writer: AnswerWriter) -> str:
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
        say(f"qcls-gguf: {place}'{printable(line.text[:60])}': {shown(e)}")
        writer.write(line, str(e))
        return "failed"
    writer.write(line, result)
    return "labelled"
