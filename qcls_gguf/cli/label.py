"""`qcls-gguf label`: parsing and printing only."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from ..data.queries import QUERY
from ..errors import ConfigError
from .options import (
    ConfigOption,
    DiagramsOption,
    LayersOption,
    ModelOption,
    OfflineOption,
    QueryColumnOption,
    QuietOption,
    RecordFormat,
    RepoOption,
    ScoringOption,
    StateCacheOption,
    ThreadsOption,
    TryModelOption,
    settings,
)
from .terminal import EXIT_OTHER, exit_codes

if TYPE_CHECKING:
    from ..labelling.run import RunProgress

_LINE_S = 30.0


class OutputFormat(StrEnum):
    """Of the output files."""

    parquet = "parquet"
    csv = "csv"
    tsv = "tsv"
    jsonl = "jsonl"


class Engine(StrEnum):
    """What runs the workers."""

    local = "local"
    ray = "ray"


def label_command(
    inputs: Annotated[
        list[str], typer.Argument(metavar="IN…", help="Parquet, .csv, .tsv, .jsonl, text; patterns, folders.")
    ],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", metavar="DIR|FILE", help="A folder that gets a file for each shard, or one file."),
    ],
    query_column: QueryColumnOption = QUERY,
    format_: Annotated[
        OutputFormat | None,
        typer.Option("--format", "-f", help="Format of the output. Default: the input's; csv for text."),
    ] = None,
    scores: Annotated[bool, typer.Option("--scores", help="Also a column with every label's probability.")] = False,
    top_k: Annotated[
        int | None, typer.Option("--top-k", min=1, metavar="K", help="Also a column with the K most probable labels.")
    ] = None,
    prefix: Annotated[
        str, typer.Option("--prefix", metavar="TEXT", help="Put before the names of the new columns.")
    ] = "",
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first row that gets no labels.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Label everything again and replace the output.")
    ] = False,
    redo_changed: Annotated[
        bool, typer.Option("--redo-changed", help="Label inputs again that changed since the last run.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, metavar="N", help="Label only the first N rows.")
    ] = None,
    sample: Annotated[
        int | None, typer.Option("--sample", min=1, metavar="N", help="Label only N random rows.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="S", help="Seed of --sample.")] = 0,
    cache: Annotated[
        Path | None,
        typer.Option(
            "--cache",
            metavar="FILE",
            help="A file of answers, to reuse them in other shards and runs.",
        ),
    ] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", min=1, max=512, metavar="N", help="Queries in a decode. Default: measured.")
    ] = None,
    shard_rows: Annotated[int, typer.Option("--shard-rows", min=1, metavar="N", help="Most rows in a shard.")] = 50_000,
    devices: Annotated[
        str | None, typer.Option("--devices", metavar="D,…", help="Start a process for each: numbers of GPUs, or cpu.")
    ] = None,
    engine: Annotated[
        Engine, typer.Option("--engine", help="ray: label with Ray actors on all machines of the cluster.")
    ] = Engine.local,
    summary: Annotated[
        RecordFormat, typer.Option("--summary", help="A table for people, JSON for machines.")
    ] = RecordFormat.table,
    html: DiagramsOption = None,
    config: ConfigOption = None,
    model: ModelOption = None,
    hf_repo: RepoOption = None,
    offline: OfflineOption = False,
    no_state_cache: StateCacheOption = False,
    no_try_model: TryModelOption = False,
    n_gpu_layers: LayersOption = None,
    scoring: ScoringOption = None,
    threads: ThreadsOption = None,
    quiet: QuietOption = False,
) -> None:
    """Label whole tables: files of any size, in shards, so that a stopped run can go on.

    Every row of the inputs becomes one row of the output: its columns, for each prompt NAME and NAME_probability, and
    `error` with the reason if the row got no labels. A shard is a row group of Parquet or a block of lines, of at most
    --shard-rows rows. If --out is a folder, each shard becomes a file there; if it is a file, the shards are joined at
    the end. Repeat the same command to finish a stopped run. Equal queries of a shard are computed once, with --cache
    those of all shards and runs. --devices 0,1 starts a process on each of two GPUs, cpu,cpu two processes on the CPU.
    The summary goes to standard output, all else to standard error. Exit codes: 0, also if rows got no labels; 1 if an
    input or the output failed; 2 for usage and configuration, another run on the same output, an input that has
    changed; 3 for a model that can't be loaded.

    \b
    qcls-gguf label queries.parquet --out labelled.parquet
    qcls-gguf label 'logs/*.csv' --query-column text --out labelled --format parquet --cache answers.sqlite
    qcls-gguf label logs --out labelled --devices 0,1 --config qwen3-8b-t4
    qcls-gguf label queries.parquet --out look.csv --sample 1000 --html look.html
    """
    with exit_codes():
        _check_extra("pyarrow", "label needs pyarrow: pip install 'qcls-gguf[label]'")
        if engine is Engine.ray:
            _check_extra("ray", "--engine ray needs Ray: pip install 'qcls-gguf[ray]'")
        from ..labelling.results import labelling_document  # see app.py for why here
        from ..labelling.run import LabelSettings, label_files
        from ..report.files import Output
        from .long_work import check_html, classifier_opener
        from .shown import show_record

        if html:
            check_html(html, {"--out": out, "--config": config, "--cache": cache})
        chosen = settings(
            config, model, hf_repo, n_gpu_layers, threads, scoring,
            no_state_cache=no_state_cache, no_try_model=no_try_model,
        )  # fmt: skip
        labelling = LabelSettings(
            config=chosen,
            format=None if format_ is None else format_.value,
            query_column=query_column or QUERY,
            prefix=prefix,
            scores=scores,
            top_k=top_k,
            strict=strict,
            cache=cache,
            batch=batch,
            offline=offline,
            inputs=tuple(inputs),
            out=out,
            shard_rows=shard_rows,
            limit=limit,
            sample=sample,
            seed=seed,
            overwrite=overwrite,
            redo_changed=redo_changed,
            devices=_devices(devices),
            engine=engine.value,
        )
        with classifier_opener(offline, quiet) as opener, _progress(quiet) as on_progress:
            record = label_files(labelling, opener, on_progress=on_progress, on_note=_note(quiet))
        outputs = []
        if html:
            from ..report.html import document_page  # matplotlib is an extra

            outputs.append(Output(name="--html", path=html, text=lambda: document_page(labelling_document(record))))
        show_record(record, summary, lambda: labelling_document(record), outputs)
    if record.n_rows and not record.n_labelled:
        raise typer.Exit(EXIT_OTHER)


def _check_extra(package: str, message: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ConfigError(message)


def _devices(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name != "cpu" and not name.isdecimal():
            raise ConfigError(f"--devices {text}: {name!r} is neither the number of a GPU nor cpu")
    return names


def _note(quiet: bool) -> Callable[[str], None]:
    from ..config.words import printable

    def note(text: str) -> None:
        if not quiet:
            print(printable(text), file=sys.stderr)

    return note


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[RunProgress], None]]:
    """One line that changes on a terminal, else a line now and then."""
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    every_s = 0.2 if is_terminal else _LINE_S
    told = perf_counter()

    def on_progress(progress: RunProgress) -> None:
        nonlocal told
        if quiet or perf_counter() - told < every_s:
            return
        told = perf_counter()
        start, end = ("\r\033[K", "") if is_terminal else ("", "\n")
        print(f"{start}{progress.line()}", end=end, file=sys.stderr, flush=True)

    try:
        yield on_progress
    finally:
        if is_terminal and not quiet:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
