"""`qcls-gguf calibrate`: parsing and printing only."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..config.words import printable_lines
from ..errors import ConfigError
from .options import (
    ConfigOption,
    FormatOption,
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
    ThreadsOption,
    labelled_columns,
    settings,
)
from .terminal import EXIT_OTHER, exit_codes


def calibrate_command(
    data: Annotated[Path, typer.Option("--data", "-d", help="Labelled queries, JSON lines or CSV.", metavar="FILE")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The calibration file to write.", metavar="FILE")] = Path(
        "calibration.yaml"
    ),
    bias: Annotated[bool, typer.Option("--bias", help="Fit a bias for each label as well.")] = False,
    folds: Annotated[
        int, typer.Option("--folds", min=2, max=100, metavar="N", help="Folds of the cross-validation.")
    ] = 5,
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Seed of the assignment to folds.")] = 0,
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", metavar="NAME", help="A prompt to fit; repeatable. Default: all.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the calibration file.")] = False,
    config: ConfigOption = None,
    model: ModelOption = None,
    hf_repo: RepoOption = None,
    offline: OfflineOption = False,
    n_gpu_layers: LayersOption = None,
    threads: ThreadsOption = None,
    format_: FormatOption = RecordFormat.table,
    resume: ResumeOption = None,
    skip_bad: SkipBadOption = False,
    query_column: QueryColumnOption = None,
    ignore_columns: IgnoreColumnsOption = None,
    quiet: QuietOption = False,
) -> None:
    """Fit a temperature, and with --bias a bias for each label, to labelled queries.

    The data has the format of eval's. Each fit minimises a prompt's log-loss in its configured scoring, after its
    prior. A fit is kept if it lowers the log-loss of rows that it has not seen (cross-validation) by more than one
    standard error; the others are refused and left out of the file. To use the file, add `calibration: FILE` to the
    configuration. Needs scipy: pip install 'qcls-gguf[calibrate]'.

    Exit codes: 0; 1 if every fit was refused, so that nothing is written, or a decode failed; 2 for usage,
    configuration and data; 3 for a model that can't be loaded. JSON is one object; docs/records.md describes its
    fields.

    \b
    qcls-gguf calibrate --data labelled.jsonl
    qcls-gguf calibrate --data labelled.csv --bias --prompt category --out category.yaml --force
    """
    with exit_codes():
        if importlib.util.find_spec("scipy") is None:
            raise ConfigError("calibrate needs scipy: pip install 'qcls-gguf[calibrate]'")
        from ..report.files import Output  # see app.py for why here
        from ..report.tables import terminal_table
        from ..tuning.calibrate import FitSettings, calibrate
        from ..tuning.table import fits_table, outcome
        from .long_work import long_work
        from .shown import show_record

        fit_settings = FitSettings(
            config=settings(config, model, hf_repo, n_gpu_layers, threads),
            data=data,
            out=out,
            names=tuple(prompt or ()),
            with_bias=bias,
            n_folds=folds,
            seed=seed,
            force=force,
            columns=labelled_columns(query_column, ignore_columns),
            skip_bad=skip_bad,
            resume=resume,
        )
        with long_work(offline, quiet) as (opener, on_progress):
            record, text = calibrate(fit_settings, opener, on_progress=on_progress)

        show_record(
            record,
            format_,
            lambda: terminal_table(fits_table(record), end=False),
            [] if text is None else [Output(name="--out", path=out, text=lambda: text)],
        )
        if not quiet:
            print(printable_lines(outcome(record)), file=sys.stderr)
    if record.written is None:
        raise typer.Exit(EXIT_OTHER)
