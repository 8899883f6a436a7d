"""`qcls-gguf bench`: parsing and printing only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..config.resources import DEFAULT_CONFIG
from .options import QueriesFile, Reporting, ScoredModelOptions, command, only_one, option, settings_of
from .terminal import check_outputs, long_work

_QUERY_TOKENS = (range(2, 10), range(6, 7))


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchModelOptions(ScoredModelOptions):
    """Configurations, and what overrides them."""

    config: tuple[Path, ...] = option("--config -c FILE|NAME", "A configuration; repeatable, to compare several.")  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions(QueriesFile):
    """What is measured."""

    query_tokens: tuple[int, ...] = option(
        "--query-tokens N", "Tokens of generated queries; repeatable. Default: 2 to 9, and 6.", low=1, high=1 << 24
    )
    batch: tuple[int, ...] = option(
        "--batch -b N", "Queries of a request; repeatable. Default: 1.", low=1, high=1 << 24
    )
    n_requests: int = option("--requests -n N", "Requests of each kind.", 50, low=1, high=1_000_000)
    n_warm_up: int = option("--warm-up N", "Requests before the counted ones.", 5, low=0, high=1_000_000)
    n_repeats: int = option("--repeat N", "Repeat all measurements N times.", 3, low=1, high=1000)


@command
def bench_command(chosen: BenchOptions, model: BenchModelOptions, reporting: Reporting) -> None:
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

    only_one(queries=chosen.queries, query_tokens=chosen.query_tokens)
    benchmark_settings = settings_of(
        BenchmarkSettings,
        chosen,
        configs=tuple(map(model.settings, model.config or [Path(DEFAULT_CONFIG)])),
        input=chosen.queries,
        query_tokens=tuple(range(n, n + 1) for n in chosen.query_tokens) or _QUERY_TOKENS,
        batches=tuple(dict.fromkeys(chosen.batch)) or (1,),
    )
    inputs = {"--queries": chosen.path, "--model": model.model}
    inputs |= {f"--config {path}": path for path in model.config}
    check_outputs({"--html": reporting.html}, inputs)
    with long_work(model.offline, reporting.quiet) as opener:
        record = benchmark(benchmark_settings, opener)
    reporting.show(record, benchmark_document(record))
