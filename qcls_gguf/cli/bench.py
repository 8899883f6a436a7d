"""`qcls-gguf bench`: parsing and printing only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..config.resources import DEFAULT_CONFIG
from ..errors import ConfigError
from .options import MeasurementReporting, QueriesFile, ScoredModelOptions, command, only_one, option
from .terminal import check_outputs, long_work, show_record

_QUERY_TOKENS = "2-9,6"
_FULL_CONFIGS = ("mission", "fashion-8", "fashion-8-joint")
_FULL_BATCHES = (1, 4)
# Unpatched, CUDA graphs that idled for 10 s are dropped: this would show it.
_FULL_IDLE_S = 12.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchModelOptions(ScoredModelOptions):
    """Configurations, and what overrides them."""

    config: list[Path] = option("--config -c FILE|NAME", "A configuration; repeatable, to compare several.")  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions(QueriesFile):
    """What is measured."""

    query_tokens: str | None = option(
        "--query-tokens N|LOW-HIGH,…", "Lengths of generated queries in tokens. Default: 2-9,6."
    )
    batch: str | None = option("--batch -b N,…", "Queries in one request. Default: 1.")
    requests: int = option("--requests -n N", "Requests of each kind.", 50, low=1, high=1_000_000)
    warm_up: int = option("--warm-up N", "Requests before the counted ones.", 5, low=0, high=1_000_000)
    repeat: int = option("--repeat N", "Repeat all measurements N times.", 3, low=1, high=1000)
    idle: float | None = option("--idle SECONDS", "Also time a request after this long without any.", low=0, high=3600)
    full: bool = option("--full", "Three configurations, with --batch 1,4 and --idle 12.", False)


@command
def bench_command(chosen: BenchOptions, model: BenchModelOptions, reporting: MeasurementReporting) -> None:
    """Measure how long requests take and where the time goes, beside the device's roofline.

    Several configurations are measured in turns, request by request, so that a machine that becomes slower or faster
    affects all alike; or one after the other if they do not fit into memory together. The next request is sent when the
    last is answered. Queries are made of a list of words, or come from a file. Without options: the embedded model and
    its eight prompts.

    \b
    qcls-gguf bench -c fashion-8 -c fashion-8-joint --batch 1,4
    qcls-gguf bench --queries queries.txt --format json
    qcls-gguf bench --full -hf Qwen/Qwen3-8B-GGUF:Q4_K_M --out report.json --html report.html

    The last command makes a complete report; with a large model it takes many minutes, fewer with -n 20.

    The roofline of a decode is the larger of two times: reading its weights once at the bandwidth of a copy; and 2
    operations for each weight and each token of the smallest possible plan, at the speed of a product of 4096 × 4096
    weights of the model's type with 512 columns. The token embeddings do not count, nor the head if no logits are
    computed; of the last layer after its attention, and of the head, only the rows that are read count. Both rates are
    measured after the requests, on the same device and threads. Attention, norms, launches and the host's work are not
    included.

    JSON is one object; docs/records.md describes its fields. Exit codes are those of run.
    """
    from ..bench.benchmark import BenchmarkSettings, benchmark  # see app.py for why here
    from ..bench.document import document

    full = chosen.full
    only_one(queries=chosen.queries, query_tokens=chosen.query_tokens)
    paths = model.config or [Path(name) for name in (_FULL_CONFIGS if full else (DEFAULT_CONFIG,))]
    benchmark_settings = BenchmarkSettings(
        configs=tuple(map(model.settings, paths)),
        input=chosen.queries,
        query_column=chosen.query_column,
        query_tokens=_lengths(chosen.query_tokens or _QUERY_TOKENS),
        batches=_numbers(chosen.batch, "--batch") or (_FULL_BATCHES if full else (1,)),
        n_requests=chosen.requests,
        n_warm_up=chosen.warm_up,
        n_repeats=chosen.repeat,
        idle_s=(_FULL_IDLE_S if full else 0.0) if chosen.idle is None else chosen.idle,
    )
    inputs = {"--queries": chosen.path, "--model": model.model}
    inputs |= {f"--config {path}": path for path in model.config}
    check_outputs({"--out": reporting.out, "--html": reporting.html}, inputs)
    with long_work(model.offline, reporting.quiet) as (opener, on_progress):
        record = benchmark(benchmark_settings, opener, on_progress=on_progress)
    show_record(record, reporting, document(record))


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
