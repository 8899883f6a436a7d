"""`qcls-gguf advise`: parsing and printing only."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..config.words import printable_lines
from ..errors import ConfigError
from .option_names import with_options
from .options import (
    ConfigOption,
    DiagramOption,
    LayersOption,
    ModelOption,
    OfflineOption,
    QueryColumnOption,
    QuietOption,
    RecordFormat,
    RepoOption,
    ResumeOption,
    TablesFormatOption,
    ThreadsOption,
    settings,
)
from .terminal import EXIT_OTHER, exit_codes

if TYPE_CHECKING:
    from ..advising.records import AdviceRecord

_THIS = "this"


def advise_command(
    queries: Annotated[
        Path,
        typer.Option("--queries", help="Your queries, with or without labels: lines, CSV, JSON lines.", metavar="FILE"),
    ],
    min_agreement: Annotated[
        float,
        typer.Option(
            "--min-agreement", min=0.5, max=1.0, metavar="SHARE", help="Least share of equal answers in every prompt."
        ),
    ] = 0.98,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            help="The machine it will run on: this one, or a record of `bench --forward` made there; repeatable, a "
            "record for each model. Default: a prediction for a T4.",
            metavar="this|REPORT.json",
        ),
    ] = None,
    also: Annotated[
        list[Path] | None,
        typer.Option(
            "--also", help="Another configuration to try, with the same prompts; repeatable.", metavar="FILE|NAME"
        ),
    ] = None,
    cascade: Annotated[
        float | None,
        typer.Option(
            "--cascade",
            min=0.5,
            max=0.9999,
            metavar="SHARE",
            help="Also fit a cascade with this agreement on unseen queries.",
        ),
    ] = None,
    models: Annotated[
        Path | None, typer.Option("--models", help="A YAML file with other models to try.", metavar="FILE")
    ] = None,
    fetch: Annotated[bool, typer.Option("--fetch", help="Download models of --models that are not on disk.")] = False,
    write: Annotated[
        Path | None, typer.Option("--write", help="Write the recommended configuration.", metavar="OUT.yaml")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the written configuration.")] = False,
    html: DiagramOption = None,
    config: ConfigOption = None,
    model: ModelOption = None,
    hf_repo: RepoOption = None,
    offline: OfflineOption = False,
    n_gpu_layers: LayersOption = None,
    threads: ThreadsOption = None,
    format_: TablesFormatOption = RecordFormat.table,
    resume: ResumeOption = None,
    query_column: QueryColumnOption = None,
    latency_sample: Annotated[
        int, typer.Option("--latency-sample", min=0, metavar="N", help="Queries for the timing; 0 times nothing.")
    ] = 200,
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="S", help="Seed of the order of the queries.")] = 0,
    quiet: QuietOption = False,
) -> None:
    """Find the fastest configuration that still answers like yours, and prove it on your queries.

    Candidates are derived from the configuration: one text for all prompts, shorter last words, label wordings that
    need no branch, cheaper scorings, the query before the instructions; and one text for all prompts except those whose
    answers it changes. Candidates that feed fewer tokens answer the queries, and their answers are compared with the
    original configuration's, prompt by prompt. A sequential test drops a candidate early if it is clearly worse than
    --min-agreement. The others are timed here, request by request in turns. With --models the same prompts are tried on
    other models. The recommendation is the fastest candidate that keeps --min-agreement in every prompt: measured here
    or, with --target REPORT.json, predicted for that machine. Labelled queries add accuracy and log-loss; rows that
    cannot be used are skipped and counted.

    The file of --models has a key `models` with a list of entries like `model` in a configuration (path, ollama, or
    hf_repo with quantization). JSON is one object; docs/records.md describes its fields. Exit codes: 0; 1 if --write
    was given and nothing is recommended, or a decode failed; 2 for usage, configuration and queries; 3 for a model that
    can't be loaded.

    --cascade SHARE also fits a cascade: the candidate that saves most is asked first, and the original answers only the
    prompts whose probability is below a threshold. The thresholds are fitted on half of the queries and proven on the
    other half, so that with 95 % confidence each prompt agrees with the original in at least that share of unseen
    queries. --write writes it as two files, OUT.yaml and OUT-first-stage.yaml. Needs scipy:
    pip install 'qcls-gguf[calibrate]'.

    \b
    qcls-gguf advise --config fashion-8 --queries queries.txt
    qcls-gguf advise --config shop.yaml --queries labelled.jsonl --write faster.yaml --html advice.html
    qcls-gguf advise --config shop.yaml --queries queries.txt --models ladder.yaml --target t4.json --resume a.jsonl
    """
    from ..advising.advise import advise  # see app.py for why here
    from ..advising.cascading import STAGE_FILE
    from ..advising.settings import AdviceSettings
    from ..advising.table import advice_tables
    from ..config.load import load_config
    from ..report.files import Output, check_writable
    from .long_work import check_html, long_work
    from .shown import show_record

    with exit_codes():
        reports = tuple(Path(each) for each in target or () if each != _THIS)
        inputs = {"--queries": queries, "--config": config, "--resume": resume, "--models": models}
        if html:
            check_html(html, inputs)
        if offline and fetch:
            raise ConfigError("--fetch asks the hub for models, and --offline forbids it: leave one of them out")
        if cascade is not None and importlib.util.find_spec("scipy") is None:
            raise ConfigError("--cascade needs scipy: pip install 'qcls-gguf[calibrate]'")
        if write:
            check_writable(write, "--write", {**inputs, "--html": html}, force=force)
        chosen = AdviceSettings(
            config=settings(config, model, hf_repo, n_gpu_layers, threads),
            queries=queries,
            also=tuple(map(load_config, also or ())),
            query_column=query_column,
            min_agreement=min_agreement,
            targets=reports,
            predict_t4=not target,
            cascade=cascade,
            models=models,
            fetch=fetch,
            resume=resume,
            n_latency=latency_sample,
            seed=seed,
        )
        with long_work(offline, quiet) as (opener, on_progress):
            record = _in_options(advise(chosen, opener, on_progress=on_progress))
        outputs = []
        best = next((each for each in record.candidates if each.name == record.recommended), None)
        if write and best is not None:
            text = best.yaml or ""
            if (first := best.cascade) is not None:
                beside = write.with_name(f"{write.stem}-{STAGE_FILE}")
                text = text.replace(f"config: {STAGE_FILE}", f"config: {beside.name}")
                outputs.append(Output(name="--write", path=beside, text=lambda: first.yaml))
            outputs.append(Output(name="--write", path=write, text=lambda: text))
        if html:
            from ..advising.html import advice_html  # matplotlib is an extra

            outputs.append(Output(name="--html", path=html, text=lambda: advice_html(record)))

        show_record(record, format_, lambda: advice_tables(record), outputs)
        if write and not quiet:
            done = f"written: {write}" if best is not None else "nothing written: nothing is recommended"
            print(printable_lines(done), file=sys.stderr)
    if write and best is None:
        raise typer.Exit(EXIT_OTHER)


def _in_options(record: AdviceRecord) -> AdviceRecord:
    """The record, whose notes call what a user can give by the names of options."""
    candidates = tuple(
        each.model_copy(update={"note": each.note and with_options(each.note)}) for each in record.candidates
    )
    return record.model_copy(update={"candidates": candidates, "notes": tuple(map(with_options, record.notes))})
