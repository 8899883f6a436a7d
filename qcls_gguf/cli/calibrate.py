"""`qcls-gguf calibrate`: labelled queries to a calibration file."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from ..errors import ConfigError
from ..opening import ClassifierOpener
from ..report.results import console, printable
from .long_work import progress_bars
from .options import (
    ConfigOption,
    FormatOption,
    LayersOption,
    ModelOption,
    OfflineOption,
    QuietOption,
    RecordFormat,
    RepoOption,
    ResumeOption,
    SkipBadOption,
    ThreadsOption,
    settings,
)
from .terminal import EXIT_OTHER, exit_codes, load_bar, print_step

if TYPE_CHECKING:
    from ..tuning.records import CalibrationRecord


def calibrate_command(
    data: Annotated[Path, typer.Option("--data", "-d", help="Labelled queries, JSON lines or CSV.", metavar="FILE")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The calibration file to write.", metavar="FILE")] = Path(
        "calibration.yaml"
    ),
    bias: Annotated[bool, typer.Option("--bias", help="Fit a bias for each label beside the temperature.")] = False,
    folds: Annotated[
        int, typer.Option("--folds", min=2, max=100, metavar="N", help="Folds of the cross-validation.")
    ] = 5,
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Of the shuffle into folds.")] = 0,
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
    quiet: QuietOption = False,
) -> None:
    """Fit a temperature, and with --bias a bias for each label, to labelled queries.

    Data is that of eval. Each prompt is fitted in its configured scoring, on top of its prior, by log-loss. A fit is
    kept where it lowers the log-loss of rows that it has not seen (cross-validation) by more than one standard error;
    the others are refused and left out of the file. Name the file in the configuration to use it: `calibration: FILE`.
    Needs scipy: pip install 'qcls-gguf[calibrate]'.

    Exit codes: 0; 1 if every fit was refused, and nothing written, or a decode failed; 2 for usage, configuration and
    data; 3 for a model that can't be loaded. JSON is one object; docs/records.md describes its fields.

    \b
    qcls-gguf calibrate --data labelled.jsonl
    qcls-gguf calibrate --data labelled.csv --bias --prompt category --out category.yaml --force
    """
    with exit_codes():
        if importlib.util.find_spec("scipy") is None:
            raise ConfigError("calibrate needs scipy: pip install 'qcls-gguf[calibrate]'")
        from ..tuning.calibrate import FitSettings, calibrate  # scipy is an extra

        fit_settings = FitSettings(
            config=settings(config, model, hf_repo, n_gpu_layers, threads),
            data=data,
            out=out,
            names=tuple(prompt or ()),
            with_bias=bias,
            n_folds=folds,
            seed=seed,
            force=force,
            skip_bad=skip_bad,
            resume=resume,
        )
        on_step = None if quiet else print_step
        with (
            ClassifierOpener(offline=offline, on_step=on_step, on_load=load_bar(quiet)) as opener,
            progress_bars(quiet) as on_progress,
        ):
            record = calibrate(fit_settings, opener, on_progress=on_progress)
        if format_ is RecordFormat.json:
            print(record.to_json(), flush=True)
        else:
            console().print(fits_table(record))
        if not quiet:
            print(_last_line(record), file=sys.stderr)
    if record.written is None:
        raise typer.Exit(EXIT_OTHER)


def fits_table(record: CalibrationRecord) -> Table:
    """A row a prompt: its log-loss and ECE before and on held-out rows, its temperature, and the verdict."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("prompt", "rows", "log-loss", "held out", "ECE", "held out", "temperature", "verdict"):
        table.add_column(column, justify="left" if column in ("prompt", "verdict") else "right")
    for name, fit in record.prompts.items():
        loss, ece = fit.log_loss, fit.ece
        gain = loss.before - loss.after
        table.add_row(
            Text(printable(name)),
            str(fit.n_rows),
            f"{loss.before:.4f}",
            f"{loss.after:.4f}",
            f"{ece.before:.4f}",
            f"{ece.after:.4f}",
            f"{fit.temperature:.3f}",
            f"{'kept' if fit.accepted else 'refused'}: {gain:+.4f} ± {loss.standard_error:.4f}",
        )
    return table


def _last_line(record: CalibrationRecord) -> str:
    refused = [name for name, fit in record.prompts.items() if not fit.accepted]
    if record.written is None:
        return "nothing written: no fit lowers the held-out log-loss by more than one standard error"
    left_out = f"; left out: {', '.join(refused)}" if refused else ""
    return f"written: {record.written}{left_out}; to use it, name it in the configuration: `calibration: FILE`"
