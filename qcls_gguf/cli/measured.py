"""`qcls-gguf bench` and `compare`: parsing and printing only."""

from pathlib import Path
from typing import Annotated

from typer import Context, Option

from ..config.resources import DEFAULT_CONFIG
from ..data.rows import all_queries
from ..report.files import check_outputs
from . import options as o
from .terminal import EXIT_OTHER, long_work, show, with_options


def bench(
    ctx: Context, queries: o.Queries = None, query_column: o.QueryColumn = None, input_format: o.InputFormat = None,
    encoding: o.Encoding = None, delimiter: o.Delimiter = None,
    batch: Annotated[list[int] | None, Option("--batch", "-b", metavar="N", min=1, max=1 << 24,
        help="Queries of a request; repeatable. Default: 1.")] = None,
    n_requests: Annotated[int, Option("--requests", "-n", metavar="N", min=1, max=1_000_000,
        help="Requests of a kind.")] = 50,
    n_repeats: Annotated[int, Option("--repeat", metavar="N", min=1, max=1000,
        help="Repeat all measurements N times.")] = 3,
    format: o.Format = "table", html: o.Html = None, quiet: o.Quiet = False, verbose: o.Verbose = False,
    config: Annotated[list[Path] | None, Option("--config", "-c", metavar="FILE|NAME",
        help="A configuration; repeatable, to compare several.")] = None,
    model: o.ModelName = None, hf_repo: o.Repository = None, offline: o.Offline = False,
    n_gpu_layers: o.GpuLayers = None, n_threads: o.Threads = None, max_query_tokens: o.QueryTokens = None,
    long_queries: o.LongQueries = None, scoring: o.ScoringName = None,
) -> None:  # fmt: skip
    """Measure how long requests take and where the time goes.

    Several configurations are measured in turns, request by request, so that a machine that becomes slower or faster
    affects all alike; they must fit into memory together. The next request is sent when the last is answered. Without
    options: six short queries, the embedded model and its eight prompts.

    \b
    qcls-gguf bench -c fashion-8 -c fashion-8-joint --batch 1 --batch 4
    qcls-gguf bench --queries queries.txt --format json
    qcls-gguf bench -hf Qwen/Qwen3-8B-GGUF:Q4_K_M -n 20 --html report.html

    JSON is one object; `make records` describes its fields. Exit codes are those of run.
    """
    from ..bench.benchmark import BenchmarkSettings, benchmark, benchmark_document  # see app.py for why here
    from ..opening import QUERIES

    inputs = {"--queries": queries, "--model": model} | {f"--config {path}": path for path in config or ()}
    check_outputs({"--html": html}, inputs)
    configs = [o.configured({**ctx.params, "config": path}) for path in config or [Path(DEFAULT_CONFIG)]]
    settings = BenchmarkSettings(
        configs=tuple(configs),
        queries=QUERIES if queries is None else tuple(dict.fromkeys(all_queries(queries, o.reading(ctx.params)))),
        input=queries,
        batches=tuple(dict.fromkeys(batch or [1])),
        n_requests=n_requests,
        n_repeats=n_repeats,
    )
    with long_work(offline, quiet) as opener:
        record = benchmark(settings, opener)
    show(record, benchmark_document(record), format, html)


def compare(
    ctx: Context, query: o.Query = None, queries: o.Queries = None, query_column: o.QueryColumn = None,
    input_format: o.InputFormat = None, encoding: o.Encoding = None, delimiter: o.Delimiter = None,
    method: Annotated[list[str] | None, Option("--method", metavar="NAME",
        help="One of the methods above; repeatable. Default: all.")] = None,
    n_rounds: Annotated[int, Option("--rounds", metavar="N", min=1,
        help="Timed requests of every query by every method.")] = 10,
    llama_server: Annotated[str | None, Option("--llama-server", metavar="URL",
        help="The address of a running llama-server.")] = None,
    ollama: Annotated[str | None, Option("--ollama", metavar="URL", help="The address of a running Ollama.")] = None,
    ollama_model: Annotated[str | None, Option("--ollama-model", metavar="NAME",
        help="Ollama's model, made from the same file.")] = None,
    format: o.Format = "table", html: o.Html = None, quiet: o.Quiet = False, verbose: o.Verbose = False,
    config: o.ConfigFile = None, model: o.ModelName = None, hf_repo: o.Repository = None, offline: o.Offline = False,
    n_gpu_layers: o.GpuLayers = None, n_threads: o.Threads = None, max_query_tokens: o.QueryTokens = None,
    long_queries: o.LongQueries = None,
) -> int | None:  # fmt: skip
    """Compare latency and answers with other methods of labelling the same queries by the same prompts and model.

    The methods take turns, request by request, in one run and in a random order. A request is timed from the query's
    text to an answer for every prompt; loading and caching are not timed. A method that cannot run here is listed with
    the reason. naive, prefix and batched run the stock kernels of this llama.cpp, which read weights in the file's
    order: on a CPU they have a copy of the model; on a GPU they share the loaded one, and qcls reads that order, too,
    whatever QCLS_LANE_ORDER says. Start servers before, with the same file; without --llama-server the command that
    starts a fair one is printed.

    \b
    qcls          this package, in the configuration's scoring
    naive         stock llama.cpp with all logits, one decode a prompt, nothing cached
    prefix        naive with the prompts' prefixes cached
    batched       prefix with all prompts in one decode
    llama-server  parallel HTTP requests in pinned slots  (--llama-server)
    ollama        parallel raw HTTP requests              (--ollama and --ollama-model)

    Exit codes: 0; 1 if a method named with --method is absent, or one failed while it ran; 2 for usage and
    configuration; 3 for a model that can't be loaded. JSON is one object; `make records` describes its fields.

    \b
    qcls-gguf compare
    qcls-gguf compare --method naive --method prefix --method batched --rounds 30 --format json
    qcls-gguf compare --llama-server http://127.0.0.1:8080 --html compare.html
    qcls-gguf compare --ollama http://127.0.0.1:11434 --ollama-model fashion-tiny --queries queries.txt
    """
    from ..compare.method import ComparisonSettings  # see app.py for why here
    from ..compare.run import compare as compared
    from ..compare.run import comparison_document
    from ..opening import QUERIES

    read = [] if queries is None else all_queries(queries, o.reading(ctx.params))
    nothing_given = not query and queries is None
    settings = ComparisonSettings(
        config=o.configured(ctx.params),
        queries=QUERIES if nothing_given else (*(query or ()), *read),
        methods=tuple(dict.fromkeys(method or ())),
        rounds=n_rounds,
        llama_server=llama_server,
        ollama=ollama,
        ollama_model=ollama_model,
    )  # fmt: skip
    check_outputs({"--html": html}, {"--config": config, "--queries": queries, "--model": model})
    with long_work(offline, quiet) as opener:
        record = compared(settings, opener)
    absent = [method.model_copy(update={"reason": with_options(method.reason)}) for method in record.absent]
    record = record.model_copy(update={"absent": tuple(absent)})
    show(record, comparison_document(record), format, html)
    return EXIT_OTHER if any(method.asked_for or method.started for method in record.absent) else None
