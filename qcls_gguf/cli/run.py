"""`qcls-gguf run`, `label` and `serve`: queries to answers that are printed, written to tables, or sent."""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Context, Option

from ..config.words import printable
from ..data.rows import Reading, Row, check_queries, read_queries
from ..errors import ConfigError, QclsError
from ..report.files import check_outputs
from . import options as o
from . import terminal as t

if TYPE_CHECKING:
    from ..classifier import Classifier
    from ..report.answers import AnswerWriter

_KEY_VARIABLE = "QCLS_API_KEY"
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
        help="Add every label's joint score and the label mass, and whether joint picks another label.")] = False,
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
        t.classifier_opener(offline, quiet) as opener,
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
            t.say(f"labelled {counts['labelled']:,}{others}, in {perf_counter() - began:.1f} s")
    return t.EXIT_OTHER if counts["failed"] else None


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


def _answer(classifier: "Classifier", line: Row, writer: "AnswerWriter") -> str:
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
        t.say(f"qcls-gguf: {place}'{printable(line.text[:60])}': {t.shown(e)}")
        writer.write(line, str(e))
        return "failed"
    writer.write(line, result)
    return "labelled"


def label(
    ctx: Context,
    inputs: Annotated[list[str], Argument(metavar="IN…", help="Parquet, .csv, .tsv, .jsonl, text; patterns, folders.")],
    out: Annotated[Path, Option("--out", "-o", metavar="DIR|FILE",
        help="A folder that gets a file a shard, or one file.")],
    query_column: o.QueryColumn = None, input_format: o.InputFormat = None, encoding: o.Encoding = None,
    delimiter: o.Delimiter = None,
    output_format: Annotated[Literal["parquet", "csv", "tsv", "jsonl"] | None, Option("--output-format",
        help="Format of the output. Default: the input's; csv for text.")] = None,
    scores: Annotated[bool, Option("--scores", help="Also a column with every label's probability.")] = False,
    prefix: Annotated[str, Option("--prefix", metavar="TEXT", help="Put before the names of the new columns.")] = "",
    overwrite: Annotated[bool, Option("--overwrite", help="Label everything again and replace the output.")] = False,
    limit: Annotated[int | None, Option("--limit", metavar="N", min=1, help="Label only the first N rows.")] = None,
    part: Annotated[str, Option("--part", metavar="K/N",
        help="Label only every N-th shard, from the K-th on, for N runs at a time.")] = "1/1",
    batch: Annotated[int | None, Option("--batch", "-b", metavar="N", min=1, max=512,
        help="Queries in a decode. Default: 8 on a CPU, 32 on a GPU.")] = None,
    shard_rows: Annotated[int, Option("--shard-rows", metavar="N", min=1, help="Most rows in a shard.")] = 50_000,
    format: o.Format = "table", html: o.Html = None, quiet: o.Quiet = False, verbose: o.Verbose = False,
    config: o.ConfigFile = None, model: o.ModelName = None, hf_repo: o.Repository = None, offline: o.Offline = False,
    n_gpu_layers: o.GpuLayers = None, n_threads: o.Threads = None, max_query_tokens: o.QueryTokens = None,
    long_queries: o.LongQueries = None, scoring: o.ScoringName = None,
) -> int | None:  # fmt: skip
    """Label whole tables: files of any size, in shards, so that a stopped run can go on.

    Every row of the inputs becomes one row of the output: its columns, for every prompt NAME and NAME_probability, and
    `error` with the reason if the row got no labels. A shard is a row group of Parquet or a block of lines, of at most
    --shard-rows rows. If --out is a folder, a shard becomes a file there; if it is a file, the shards are joined at
    the end. Repeat the same command to finish a stopped run. Equal queries are computed once. On several GPUs or
    machines every run labels its part of the shards into an output of its own: CUDA_VISIBLE_DEVICES=0 with --part 1/2,
    CUDA_VISIBLE_DEVICES=1 with --part 2/2. The summary goes to standard output, all else to standard error. Exit codes:
    0, also if rows got no labels; 1 if an input or the output failed; 2 for usage and configuration, another run on the
    same output, an input that has changed; 3 for a model that can't be loaded.

    \b
    qcls-gguf label queries.parquet --out labelled.parquet
    qcls-gguf label 'logs/*.csv' --query-column text --out labelled --output-format parquet
    qcls-gguf label logs --out labelled-2 --part 2/4 --config qwen3-8b-t4
    qcls-gguf label queries.parquet --out look.csv --limit 1000 --html look.html
    """
    t.needs("label", "pyarrow", "label")
    from ..labelling.records import labelling_document  # see app.py for why here
    from ..labelling.run import LabelSettings, label_files

    check_outputs({"--html": html}, {"--out": out, "--config": config})
    k, _, n = part.partition("/")
    if not (k.isdecimal() and n.isdecimal() and 1 <= int(k) <= int(n)):
        raise ConfigError(f"--part {part}: give two numbers, the first one at most the second, as in 2/4")
    settings = LabelSettings(
        config=o.configured(ctx.params),
        inputs=tuple(inputs), out=out, reading=o.reading(ctx.params), format=output_format, scores=scores,
        prefix=prefix, overwrite=overwrite, limit=limit, part=(int(k), int(n)), batch=batch,
        shard_rows=shard_rows,
    )  # fmt: skip
    with t.long_work(offline, quiet) as opener:
        on_note = (lambda _: None) if quiet else lambda text: t.say(printable(text))
        record = label_files(settings, opener, on_note=on_note)
    t.show(record, labelling_document(record), format, html)
    return t.EXIT_OTHER if record.n_rows and not record.n_labelled else None


def serve(
    ctx: Context,
    host: Annotated[str, Option("--host", metavar="NAME", help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, Option("--port", metavar="N", min=0, max=65535,
        help="The port to listen at; 0: any free one.")] = 8080,
    api_key: Annotated[list[str] | None, Option("--api-key", metavar="KEY",
        help="A key that clients must send; repeatable. Also those of " f"{_KEY_VARIABLE}, between spaces.")] = None,
    grace_s: Annotated[float, Option("--grace", metavar="SECONDS", min=0,
        help="Time to finish requests when told to stop.")] = 30.0,
    timeout_ms: Annotated[int, Option("--timeout", metavar="MS", min=1, max=600_000,
        help="Time limit of requests that set none.")] = 10_000,
    body_bytes: Annotated[int, Option("--max-body", metavar="BYTES", min=1024, max=1 << 30,
        help="Most bytes of a request's body.")] = 4 << 20,
    queries: Annotated[int, Option("--max-queries", metavar="N", min=1, max=1 << 20,
        help="Most queries, or questions, in one request.")] = 400,
    waiting_requests: Annotated[int, Option("--max-requests", metavar="N", min=1, max=1 << 20,
        help="Most requests at once; more get 503.")] = 64,
    quiet: o.Quiet = False, verbose: o.Verbose = False, config: o.ConfigFile = None, model: o.ModelName = None,
    hf_repo: o.Repository = None, offline: o.Offline = False, n_gpu_layers: o.GpuLayers = None,
    n_threads: o.Threads = None, max_query_tokens: o.QueryTokens = None, long_queries: o.LongQueries = None,
    scoring: o.ScoringName = None,
) -> None:  # fmt: skip
    """Answer requests over HTTP: this project's own, and those of OpenAI's, TypeSafe's and Hugging Face's clients.

    The service listens at once; /ready answers 200 when the model is loaded. SIGTERM, SIGINT and SIGHUP finish the
    requests that have arrived and end the service. Needs the extra `serve`. Exit codes are those of run.

    \b
    qcls-gguf serve --config my.yaml
    curl localhost:8080/v1/classify -H 'content-type: application/json' -d '{"query": "red dress for girls"}'
    """
    t.needs("serve", "uvloop", "serve")
    # imported by its own command only, which keeps the start of the others short
    from ..service.lifecycle import Lifecycle, ServiceSettings, check_keys
    from ..service.server import serve as serve_requests

    variable = os.environ.get(_KEY_VARIABLE)
    if variable is not None and not variable.strip():  # as if a compose file passes on an unset variable
        raise ConfigError(f"{_KEY_VARIABLE} is set but empty, so anybody could send requests: give a key, or unset it")
    service = ServiceSettings(
        host=host,
        port=port,
        api_keys=check_keys([*(api_key or ()), *(variable or "").split()]),
        grace_s=grace_s,
        logs_requests=not quiet,
        timeout_ms=timeout_ms,
        body_bytes=body_bytes,
        queries=queries,
        waiting_requests=waiting_requests,
    )
    if not (service.is_local or service.api_keys) and not quiet:
        t.print_warning(f"anybody who can reach {host} may send requests: limit that with --api-key")
    on_step = None if quiet else t.print_step
    configured = o.configured(ctx.params)
    lifecycle = Lifecycle(configured, service, offline=offline, on_step=on_step, on_load=t.load_bar(quiet))
    serve_requests(lifecycle, lambda address: t.say(f"serving at {address}"))
