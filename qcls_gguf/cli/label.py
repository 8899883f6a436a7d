"""`qcls-gguf label`: parsing and printing only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Literal

from ..config.words import printable
from ..errors import ConfigError
from .options import REQUIRED, FileOptions, RecordFormat, Reporting, ScoredModelOptions, argument, command, option
from .terminal import EXIT_OTHER, check_outputs, classifier_opener, needs, say

_LINE_S = 30.0


OutputFormat = Literal["parquet", "csv", "tsv", "jsonl"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions(FileOptions):
    """What is read and written."""

    inputs: tuple[str, ...] = argument("IN…", "Parquet, .csv, .tsv, .jsonl, text; patterns, folders.")
    out: Path = option("--out -o DIR|FILE", "A folder that gets a file for each shard, or one file.", REQUIRED)
    format: OutputFormat | None = option("--format -f", "Format of the output. Default: the input's; csv for text.")
    scores: bool = option("--scores", "Also a column with every label's probability.", False)
    top_k: int | None = option("--top-k K", "Also a column with the K most probable labels.", low=1)
    prefix: str = option("--prefix TEXT", "Put before the names of the new columns.", "")
    overwrite: bool = option("--overwrite", "Label everything again and replace the output.", False)
    limit: int | None = option("--limit N", "Label only the first N rows.", low=1)
    part: str = option("--part K/N", "Label only every N-th shard, from the K-th on, for N runs at a time.", "1/1")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOptions:
    """How the rows are labelled."""

    cache: Path | None = option("--cache FILE", "A file of answers, to reuse them in other shards and runs.")
    batch: int | None = option(
        "--batch N", "Queries in a decode. Default: measured, or 8 for few queries.", low=1, high=512
    )
    shard_rows: int = option("--shard-rows N", "Most rows in a shard.", 50_000, low=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryOptions(Reporting):
    """How the record of the run is reported."""

    format: RecordFormat = option("--summary", "A table for people, JSON for machines.", "table")


@command
def label_command(
    table: TableOptions, work: WorkOptions, model: ScoredModelOptions, summary: SummaryOptions
) -> int | None:
    """Label whole tables: files of any size, in shards, so that a stopped run can go on.

    Every row of the inputs becomes one row of the output: its columns, for each prompt NAME and NAME_probability, and
    `error` with the reason if the row got no labels. A shard is a row group of Parquet or a block of lines, of at most
    --shard-rows rows. If --out is a folder, each shard becomes a file there; if it is a file, the shards are joined at
    the end. Repeat the same command to finish a stopped run. Equal queries of a shard are computed once, with --cache
    those of all shards and runs. On several GPUs or machines each run labels its part of the shards into an output of
    its own: CUDA_VISIBLE_DEVICES=0 with --part 1/2, CUDA_VISIBLE_DEVICES=1 with --part 2/2. The summary goes to
    standard output, all else to standard error. Exit codes: 0, also if rows got no labels; 1 if an input or the output
    failed; 2 for usage and configuration, another run on the same output, an input that has changed; 3 for a model that
    can't be loaded.

    \b
    qcls-gguf label queries.parquet --out labelled.parquet
    qcls-gguf label 'logs/*.csv' --query-column text --out labelled --format parquet --cache answers.sqlite
    qcls-gguf label logs --out labelled-2 --part 2/4 --config qwen3-8b-t4
    qcls-gguf label queries.parquet --out look.csv --limit 1000 --html look.html
    """
    needs("label", "pyarrow", "label")
    from ..labelling.results import labelling_document  # see app.py for why here
    from ..labelling.run import label_files
    from ..labelling.worker import LabelSettings

    check_outputs({"--html": summary.html}, {"--out": table.out, "--config": model.config, "--cache": work.cache})
    labelling = LabelSettings(
        config=model.settings(),
        reading=table.reading,
        **{**asdict(work), **{name: getattr(table, name) for name in ("inputs", "out", "format", "scores", "top_k")}},
        **{name: getattr(table, name) for name in ("prefix", "overwrite", "limit")},
        part=_part(table.part),
    )
    with classifier_opener(model.offline, summary.quiet) as opener, _progress(summary.quiet) as on_progress:
        on_note = (lambda _: None) if summary.quiet else lambda text: say(printable(text))
        record = label_files(labelling, opener, on_progress=on_progress, on_note=on_note)
    summary.show(record, labelling_document(record))
    return EXIT_OTHER if record.n_rows and not record.n_labelled else None


def _part(text: str) -> tuple[int, int]:
    k, _, n = text.partition("/")
    if not (k.isdecimal() and n.isdecimal() and 1 <= int(k) <= int(n)):
        raise ConfigError(f"--part {text}: give two numbers, the first one at most the second, as in 2/4")
    return int(k), int(n)


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[str], None]]:
    """One line that changes on a terminal, else a line now and then."""
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    every_s = 0.2 if is_terminal else _LINE_S
    told = perf_counter()

    def on_progress(line: str) -> None:
        nonlocal told
        if quiet or perf_counter() - told < every_s:
            return
        told = perf_counter()
        start, end = ("\r\033[K", "") if is_terminal else ("", "\n")
        print(f"{start}{line}", end=end, file=sys.stderr, flush=True)

    try:
        yield on_progress
    finally:
        if is_terminal and not quiet:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
