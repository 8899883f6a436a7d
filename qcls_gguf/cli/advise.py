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
    IgnoreColumnsOption,
    LayersOption,
    ModelOption,
    OfflineOption,
    QueryColumnOption,
    QuietOption,
    RecordFormat,
    RepoOption,
    TablesFormatOption,
    ThreadsOption,
    labelled_columns,
    settings,
)
from .terminal import EXIT_OTHER, exit_codes

if TYPE_CHECKING:
    from ..advising.records import AdviceRecord


def advise_command(
    data: Annotated[
        Path | None, typer.Option("--data", "-d", help="Labelled queries, JSON lines or CSV.", metavar="FILE")
    ] = None,
    queries: Annotated[
        Path | None,
        typer.Option("--queries", help="Instead: queries without labels, lines, CSV or JSON lines.", metavar="FILE"),
    ] = None,
    min_agreement: Annotated[
        float,
        typer.Option(
            "--min-agreement", min=0.5, max=1.0, metavar="SHARE", help="Least share of equal answers in every prompt."
        ),
    ] = 0.98,
    also: Annotated[
        list[Path] | None,
        typer.Option(
            "--also",
            help="Another configuration to compare, with the same prompts, perhaps another model; repeatable.",
            metavar="FILE|NAME",
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
    query_column: QueryColumnOption = None,
    ignore_columns: IgnoreColumnsOption = None,
    quiet: QuietOption = False,
) -> None:
    """Find the fastest configuration that still answers like yours, on your queries.

    Candidates are derived from the configuration: one text for all prompts, shorter last words, cheaper scorings. Each
    is opened as an ordinary configuration and asked the same queries in turns, request by request. A table compares
    their answers with those of the configuration, prompt by prompt, and their tokens and times. The recommendation is
    the fastest candidate that keeps --min-agreement in every prompt. Labelled queries add accuracies; rows that cannot
    be used are skipped and counted. --also compares another configuration, too, with the model that it names or else
    this one's.

    --cascade SHARE also fits a cascade: the candidate that saves most is asked first, and the configuration answers
    only the prompts whose probability is below a threshold. The thresholds are proposed by one half of the queries and
    accepted by the other half, so that with 95 % confidence each prompt agrees with the configuration in at least that
    share of unseen queries. --write writes it as two files, OUT.yaml and OUT-first-stage.yaml. Needs scipy:
    pip install 'qcls-gguf[calibrate]'.

    JSON is one object; docs/records.md describes its fields. Exit codes: 0; 1 if --write was given and nothing is
    recommended, or a decode failed; 2 for usage, configuration and queries; 3 for a model that can't be loaded.

    \b
    qcls-gguf advise --config fashion-8 --queries queries.txt
    qcls-gguf advise --config shop.yaml --data labelled.jsonl --write faster.yaml --html advice.html
    qcls-gguf advise --config shop.yaml --data labelled.jsonl --also smaller-model.yaml --cascade 0.99
    """
    from ..advising.advise import AdviceSettings, advise  # see app.py for why here
    from ..advising.comparison import STAGE_FILE
    from ..advising.document import advice_document
    from ..config.load import load_config
    from ..report.files import Output, check_writable
    from .long_work import check_html, long_work
    from .shown import show_record

    with exit_codes():
        inputs = {"--data": data, "--queries": queries, "--config": config}
        if html:
            check_html(html, inputs)
        if cascade is not None and importlib.util.find_spec("scipy") is None:
            raise ConfigError("--cascade needs scipy: pip install 'qcls-gguf[calibrate]'")
        if write:
            check_writable(write, "--write", {**inputs, "--html": html}, force=force)
        chosen = AdviceSettings(
            config=settings(config, model, hf_repo, n_gpu_layers, threads),
            data=data,
            queries=queries,
            columns=labelled_columns(query_column, ignore_columns),
            also=tuple(map(load_config, also or ())),
            min_agreement=min_agreement,
            cascade=cascade,
        )
        with long_work(offline, quiet) as (opener, on_progress):
            record = _in_options(advise(chosen, opener, on_progress=on_progress))
        outputs = []
        best = record.best
        if write and best is not None:
            text = best.yaml or ""
            if (first := best.cascade) is not None:
                beside = write.with_name(f"{write.stem}-{STAGE_FILE}")
                text = text.replace(f"config: {STAGE_FILE}", f"config: {beside.name}")
                outputs.append(Output(name="--write", path=beside, text=lambda: first.yaml))
            outputs.append(Output(name="--write", path=write, text=lambda: text))
        if html:
            from ..report.html import document_page  # matplotlib is an extra

            outputs.append(Output(name="--html", path=html, text=lambda: document_page(advice_document(record))))

        show_record(record, format_, lambda: advice_document(record), outputs)
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
