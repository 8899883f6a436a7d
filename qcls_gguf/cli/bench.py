"""`qcls-gguf bench`: parsing and printing only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from ..config.resources import DEFAULT_CONFIG
from ..data.rows import Reading
from . import options as o
from .terminal import check_outputs, long_work, show

_QUERY_TOKENS = (range(2, 10), range(6, 7))


def bench(
    queries: o.Queries = None, query_column: o.QueryColumn = None, input_format: o.InputFormat = None,
    encoding: o.Encoding = None, delimiter: o.Delimiter = None,
    query_tokens: Annotated[list[int] | None, Option("--query-tokens", metavar="N", min=1, max=1 << 24,
        help="Tokens of generated queries; repeatable. Default: 2 to 9, and 6.")] = None,
    batch: Annotated[list[int] | None, Option("--batch", "-b", metavar="N", min=1, max=1 << 24,
        help="Queries of a request; repeatable. Default: 1.")] = None,
    n_requests: Annotated[int, Option("--requests", "-n", metavar="N", min=1, max=1_000_000,
        help="Requests of a kind.")] = 50,
    n_warm_up: Annotated[int, Option("--warm-up", metavar="N", min=0, max=1_000_000,
        help="Requests before the counted ones.")] = 5,
    n_repeats: Annotated[int, Option("--repeat", metavar="N", min=1, max=1000,
        help="Repeat all measurements N times.")] = 3,
    format: o.Format = "table", html: o.Html = None, quiet: o.Quiet = False, verbose: o.Verbose = False,
    config: Annotated[list[Path] | None, Option("--config", "-c", metavar="FILE|NAME",
        help="A configuration; repeatable, to compare several.")] = None,
    model: o.ModelName = None, hf_repo: o.Repository = None, offline: o.Offline = False,
    state_cache: o.StateCache = None, try_model: o.TryModel = None, n_gpu_layers: o.GpuLayers = None,
    n_threads: o.Threads = None, max_query_tokens: o.QueryTokens = None, long_queries: o.LongQueries = None,
    scoring: o.ScoringName = None,
) -> None:  # fmt: skip
    """Measure how long requests take and where the time goes.

    Several configurations are measured in turns, request by request, so that a machine that becomes slower or faster
    affects all alike; they must fit into memory together. The next request is sent when the last is answered. Queries
    are made of a list of words, or come from a file. Without options: the embedded model and its eight prompts.

    \b
    qcls-gguf bench -c fashion-8 -c fashion-8-joint --batch 1 --batch 4
    qcls-gguf bench --queries queries.txt --format json
    qcls-gguf bench -hf Qwen/Qwen3-8B-GGUF:Q4_K_M -n 20 --html report.html

    JSON is one object; `make records` describes its fields. Exit codes are those of run.
    """
    from ..bench.benchmark import BenchmarkSettings, benchmark  # see app.py for why here
    from ..bench.records import benchmark_document

    o.only_one(queries=queries, query_tokens=query_tokens)
    configs = [
        o.configured(
            path, model, hf_repo, scoring, state_cache=state_cache, try_model=try_model, n_gpu_layers=n_gpu_layers,
            n_threads=n_threads, max_query_tokens=max_query_tokens, long_queries=long_queries,
        )
        for path in config or [Path(DEFAULT_CONFIG)]
    ]  # fmt: skip
    settings = BenchmarkSettings(
        configs=tuple(configs),
        input=queries,
        reading=Reading(query=query_column, format=input_format, encoding=encoding, delimiter=delimiter),
        query_tokens=tuple(range(n, n + 1) for n in query_tokens or ()) or _QUERY_TOKENS,
        batches=tuple(dict.fromkeys(batch or [1])),
        n_requests=n_requests,
        n_warm_up=n_warm_up,
        n_repeats=n_repeats,
    )
    inputs = {"--queries": queries, "--model": model} | {f"--config {path}": path for path in config or ()}
    check_outputs({"--html": html}, inputs)
    with long_work(offline, quiet) as opener:
        record = benchmark(settings, opener)
    show(record, benchmark_document(record), format, html)
