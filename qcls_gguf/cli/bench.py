"""`qcls-gguf bench`: parsing and printing only."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from ..config.resources import DEFAULT_CONFIG
from ..errors import ConfigError
from ..report.files import Output, check_writable
from .options import (
    LayersOption,
    ModelOption,
    OfflineOption,
    QuietOption,
    RecordFormat,
    RepoOption,
    ScoringOption,
    TablesFormatOption,
    ThreadsOption,
    settings,
)
from .terminal import exit_codes

_QUERY_TOKENS = "2-9,6"
_FULL_CONFIGS = ("mission", "fashion-8", "fashion-8-joint")
_FULL_BATCHES = (1, 4)
# Unpatched, CUDA graphs that idled for 10 s are dropped: this would show it.
_FULL_IDLE_S = 12.0
_LEAST_RATE = 0.001


def bench_command(
    config: Annotated[
        list[Path] | None,
        typer.Option("--config", "-c", help="A configuration; repeatable, to compare several.", metavar="FILE|NAME"),
    ] = None,
    model: ModelOption = None,
    hf_repo: RepoOption = None,
    offline: OfflineOption = False,
    n_gpu_layers: LayersOption = None,
    threads: ThreadsOption = None,
    scoring: ScoringOption = None,
    queries: Annotated[
        str | None, typer.Option("--queries", metavar="FILE|-", help="A file with one query a line.")
    ] = None,
    query_tokens: Annotated[
        str | None,
        typer.Option(
            "--query-tokens", metavar="N|LOW-HIGH,…", help="Lengths of generated queries in tokens. Default: 2-9,6."
        ),
    ] = None,
    batch: Annotated[
        str | None, typer.Option("--batch", "-b", metavar="N,…", help="Queries in one request. Default: 1.")
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option("--rate", metavar="R", help="Send R requests a second without waiting for answers."),
    ] = None,
    requests: Annotated[
        int, typer.Option("--requests", "-n", min=1, max=1_000_000, metavar="N", help="Requests of each kind.")
    ] = 50,
    warm_up: Annotated[
        int, typer.Option("--warm-up", min=0, max=1_000_000, metavar="N", help="Requests before the counted ones.")
    ] = 5,
    repeat: Annotated[
        int, typer.Option("--repeat", min=1, max=1000, metavar="N", help="Repeat all measurements N times.")
    ] = 3,
    idle: Annotated[
        float | None,
        typer.Option(
            "--idle", metavar="SECONDS", help="Also time a request after this long without any. Default: 0, no."
        ),
    ] = None,
    full: Annotated[
        bool,
        typer.Option("--full", help="Three configurations, with --batch 1,4 and --idle 12."),
    ] = False,
    format_: TablesFormatOption = RecordFormat.table,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Also write the JSON here.", metavar="FILE")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Also write a report with plots.", metavar="FILE")] = None,
    quiet: QuietOption = False,
) -> None:
    """Measure how long requests take and where the time goes, beside the device's roofline.

    Several configurations are measured in turns, request by request, so that a machine that becomes slower or faster
    affects all alike; or one after the other with --rate, or if they do not fit into memory together. Queries are made
    of a list of words, or come from a file. Without options: the embedded model and its eight prompts.

    \b
    qcls-gguf bench -c fashion-8 -c fashion-8-joint --batch 1,4
    qcls-gguf bench --queries queries.txt --rate 20 --format json
    qcls-gguf bench --full -hf Qwen/Qwen3-8B-GGUF:Q4_K_M --out report.json --html report.html

    The last command makes a complete report; with a large model it takes many minutes, fewer with -n 20.

    The roofline of a decode is the larger of two times: reading its weights once at the bandwidth of a copy; and 2
    operations for each weight and each token of the smallest possible plan, at the speed of a product of 4096 × 4096
    weights of the model's type with 512 columns. The token embeddings do not count, nor the head if no logits are
    computed; of the last layer behind its attention, and of the head, only the rows that are read count. Both rates are
    measured after the requests, on the same device and threads. Attention, norms, launches and the host's work are not
    included.

    JSON is one object; docs/records.md describes its fields. Exit codes are those of run.
    """
    from ..bench.benchmark import BenchmarkSettings, benchmark  # see app.py for why here
    from ..bench.document import document
    from .long_work import check_html, long_work
    from .shown import show_record

    with exit_codes():
        benchmark_settings = BenchmarkSettings(
            configs=tuple(
                settings(path, model, hf_repo, n_gpu_layers, threads, scoring) for path in _paths(config, full)
            ),
            input=_input(queries, query_tokens),
            query_tokens=_lengths(query_tokens or _QUERY_TOKENS),
            batches=_numbers(batch, "--batch") or (_FULL_BATCHES if full else (1,)),
            rate=_positive(rate, "--rate"),
            n_requests=requests,
            n_warm_up=warm_up,
            n_repeats=repeat,
            idle_s=(_FULL_IDLE_S if full else 0.0) if idle is None else _seconds(idle),
        )
        inputs = {"--queries": Path(queries) if queries else None, "--model": model}
        inputs |= {f"--config {path}": path for path in config or []}
        if out:
            check_writable(out, "--out", inputs)
        if html:
            check_html(html, {**inputs, "--out": out})
        with long_work(offline, quiet) as (opener, on_progress):
            record = benchmark(benchmark_settings, opener, on_progress=on_progress)
        outputs = []
        if out:
            outputs.append(Output(name="--out", path=out, text=lambda: f"{record.to_json()}\n"))
        if html:
            from ..report.html import document_page  # matplotlib is an extra

            outputs.append(Output(name="--html", path=html, text=lambda: document_page(document(record))))

        show_record(record, format_, lambda: document(record), outputs)


def _paths(paths: list[Path] | None, full: bool) -> list[Path]:
    return paths or [Path(name) for name in (_FULL_CONFIGS if full else (DEFAULT_CONFIG,))]


def _input(source: str | None, query_tokens: str | None) -> str | None:
    if source is not None and query_tokens is not None:
        raise ConfigError("--queries and --query-tokens are both given: keep one of them")
    return source


def _numbers(text: str | None, option: str) -> tuple[int, ...] | None:
    """Whole numbers from 1 on, separated by commas, each once; None for no text."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not _is_number(part):
            raise ConfigError(f"{option} {text}: {part!r} is not a whole number from 1 on: give some, as in 1,4")
    return tuple(dict.fromkeys(map(int, parts)))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 9 and 1 <= int(text) < 1 << 24


def _lengths(text: str) -> tuple[range, ...]:
    """Numbers of tokens, or ranges of them, separated by commas."""
    lengths = []
    for part in text.split(","):
        ends = [end.strip() for end in part.split("-")]
        if len(ends) > 2 or not all(map(_is_number, ends)):
            raise ConfigError(f"--query-tokens {text}: {part.strip()!r} is no number or range: give some, as in 2-9,12")
        low, high = int(ends[0]), int(ends[-1])
        if low > high:
            raise ConfigError(f"--query-tokens {text}: {part.strip()!r} runs backwards: write {high}-{low}")
        lengths.append(range(low, high + 1))
    return tuple(dict.fromkeys(lengths))


def _positive(rate: float | None, option: str) -> float | None:
    if rate is not None and not (math.isfinite(rate) and rate >= _LEAST_RATE):
        raise ConfigError(f"{option} {rate:g}: requests a second must be at least {_LEAST_RATE:g}")
    return rate


def _seconds(idle: float) -> float:
    if not 0 <= idle <= 3600:
        raise ConfigError(f"--idle {idle:g}: give seconds from 0 to 3600")
    return idle
