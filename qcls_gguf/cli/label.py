"""`qcls-gguf label`: parsing and printing only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Context, Option

from ..config.words import printable
from ..errors import ConfigError
from ..report.files import check_outputs
from . import options as o
from .terminal import EXIT_OTHER, long_work, needs, say, show


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
    cache: Annotated[Path | None, Option("--cache", metavar="FILE",
        help="A file of answers, reused in other shards and runs.")] = None,
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
    the end. Repeat the same command to finish a stopped run. Equal queries of a shard are computed once, with --cache
    those of all shards and runs. On several GPUs or machines every run labels its part of the shards into an output of
    its own: CUDA_VISIBLE_DEVICES=0 with --part 1/2, CUDA_VISIBLE_DEVICES=1 with --part 2/2. The summary goes to
    standard output, all else to standard error. Exit codes: 0, also if rows got no labels; 1 if an input or the output
    failed; 2 for usage and configuration, another run on the same output, an input that has changed; 3 for a model that
    can't be loaded.

    \b
    qcls-gguf label queries.parquet --out labelled.parquet
    qcls-gguf label 'logs/*.csv' --query-column text --out labelled --output-format parquet --cache answers.sqlite
    qcls-gguf label logs --out labelled-2 --part 2/4 --config qwen3-8b-t4
    qcls-gguf label queries.parquet --out look.csv --limit 1000 --html look.html
    """
    needs("label", "pyarrow", "label")
    from ..labelling.records import labelling_document  # see app.py for why here
    from ..labelling.run import LabelSettings, label_files

    check_outputs({"--html": html}, {"--out": out, "--config": config, "--cache": cache})
    k, _, n = part.partition("/")
    if not (k.isdecimal() and n.isdecimal() and 1 <= int(k) <= int(n)):
        raise ConfigError(f"--part {part}: give two numbers, the first one at most the second, as in 2/4")
    settings = LabelSettings(
        config=o.configured(ctx.params),
        inputs=tuple(inputs), out=out, reading=o.reading(ctx.params), format=output_format, scores=scores,
        prefix=prefix, overwrite=overwrite, limit=limit, part=(int(k), int(n)), cache=cache, batch=batch,
        shard_rows=shard_rows,
    )  # fmt: skip
    with long_work(offline, quiet) as opener:
        on_note = (lambda _: None) if quiet else lambda text: say(printable(text))
        record = label_files(settings, opener, on_note=on_note)
    show(record, labelling_document(record), format, html)
    return EXIT_OTHER if record.n_rows and not record.n_labelled else None
