"""`qcls-gguf eval`: parsing and printing only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..config.scoring import SCORINGS, Scoring, parse_scoring
from .options import (
    ConfigOption,
    DiagramsOption,
    IgnoreColumnsOption,
    LayersOption,
    ModelOption,
    OfflineOption,
    QueryColumnOption,
    QuietOption,
    RecordFormat,
    RepoOption,
    ResumeOption,
    SkipBadOption,
    TablesFormatOption,
    ThreadsOption,
    labelled_columns,
    settings,
)
from .terminal import EXIT_OTHER, exit_codes


def eval_command(
    data: Annotated[Path, typer.Option("--data", "-d", help="Labelled queries, JSON lines or CSV.", metavar="FILE")],
    scoring: Annotated[
        list[str] | None,
        typer.Option("--scoring", help="A scoring to evaluate; repeatable. Default: all.", metavar="|".join(SCORINGS)),
    ] = None,
    audit: Annotated[
        bool, typer.Option("--audit", help="Compare with joint even if neither joint nor mean is evaluated.")
    ] = False,
    config: ConfigOption = None,
    model: ModelOption = None,
    hf_repo: RepoOption = None,
    offline: OfflineOption = False,
    n_gpu_layers: LayersOption = None,
    threads: ThreadsOption = None,
    format_: TablesFormatOption = RecordFormat.table,
    html: DiagramsOption = None,
    resume: ResumeOption = None,
    skip_bad: SkipBadOption = False,
    query_column: QueryColumnOption = None,
    ignore_columns: IgnoreColumnsOption = None,
    latency_sample: Annotated[
        int,
        typer.Option(
            "--latency-sample", min=0, metavar="N", help="Queries for the timing of each mode; 0 times nothing."
        ),
    ] = 200,
    shuffle_labels: Annotated[
        int,
        typer.Option(
            "--shuffle-labels", min=0, metavar="K", help="Also score with the labels listed in K other orders."
        ),
    ] = 0,
    batch_invariance: Annotated[
        bool,
        typer.Option("--batch-invariance", help="Also score the rows again in other conditions: see above."),
    ] = False,
    seed: Annotated[int, typer.Option("--seed", metavar="S", help="Seed of the orders of labels and rows.")] = 0,
    quiet: QuietOption = False,
) -> None:
    """Measure accuracy, calibration and cost of the scoring modes on labelled queries.

    A line of data is {"query": …, "labels": {prompt: label, or a list of accepted labels}}. CSV has a column query
    (or --query-column) and one for each prompt's name, with accepted labels separated by |; --ignore-columns names
    other columns. A mode is a scoring. Modes are compared on the prompts that all of them can score. One decode a query
    gives the scores of all modes; a second pass over a sample of the queries measures the times of each mode by itself.
    The modes are not calibrated. If the configuration has a prior, a temperature or a calibration, `calibrated` is one
    more mode: every prompt in its own scoring with these. If it is a cascade, all modes describe its last stage, and
    `cascade` is one more mode: all stages, as in a request. JSON is one object; docs/records.md describes its fields.
    Exit codes: 0; 1 if scores are not finite or a decode failed; 2 for usage, configuration and data; 3 for a model
    that can't be loaded.

    --shuffle-labels K scores the rows K more times, with the labels in every {labels} slot listed in other orders.
    --batch-invariance scores them four more times: in batches of four; in a shuffled order with other rows before each;
    up to 100 of them with the prefixes computed again; and in a newly started classifier. A flip is an answer that
    changed; a row's difference is the largest change of a label's probability.

    \b
    qcls-gguf eval --data labelled.jsonl --scoring tree --scoring joint
    qcls-gguf eval --data labelled.csv --format json --html report.html --resume scores.jsonl
    qcls-gguf eval --data labelled.jsonl --scoring tree --batch-invariance --shuffle-labels 5
    """
    from ..evaluation.evaluate import EvaluationSettings, evaluate  # see app.py for why here
    from ..evaluation.report import evaluation_document
    from .long_work import check_html, long_work
    from .shown import show_document

    with exit_codes():
        evaluation = EvaluationSettings(
            config=settings(config, model, hf_repo, n_gpu_layers, threads),
            path=data,
            modes=_modes(scoring),
            audit=audit,
            columns=labelled_columns(query_column, ignore_columns),
            skip_bad=skip_bad,
            n_latency=latency_sample,
            resume=resume,
            n_shuffles=shuffle_labels,
            batch_invariance=batch_invariance,
            seed=seed,
        )
        if html:
            check_html(html, {"--data": data, "--config": config, "--resume": resume})
        with long_work(offline, quiet) as (opener, on_progress):
            record = evaluate(evaluation, opener, on_progress=on_progress)
        show_document(record, format_, evaluation_document(record), html)
    if record.non_finite:
        raise typer.Exit(EXIT_OTHER)


def _modes(names: list[str] | None) -> tuple[Scoring, ...]:
    modes = tuple(parse_scoring(name, "--scoring") for name in names or SCORINGS)
    return tuple(dict.fromkeys(modes))
