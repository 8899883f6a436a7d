"""`qcls-gguf inspect`: parsing and printing only."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import (
    ConfigOption,
    FormatOption,
    LayersOption,
    ModelOption,
    OfflineOption,
    RecordFormat,
    RepoOption,
    ScoringOption,
    ThreadsOption,
    settings,
)
from .terminal import exit_codes, load_bar, print_step


def inspect_command(
    config: ConfigOption = None,
    model: ModelOption = None,
    hf_repo: RepoOption = None,
    offline: OfflineOption = False,
    n_gpu_layers: LayersOption = None,
    scoring: ScoringOption = None,
    threads: ThreadsOption = None,
    format_: FormatOption = RecordFormat.table,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not print the start-up.")] = False,
) -> None:
    """Show what a configuration costs with a model, before any query, and what could be cheaper or clearer.

    Per prompt the cached tokens, the tokens that every request adds, each label's tokens and the label trie; for all
    prompts together the tokens of an empty query, the sequences and the context. Exit codes are those of run.

    JSON is one object; docs/records.md describes its fields.
    """
    from ..inspection.inspect import inspect_classifier  # see app.py for why here
    from ..inspection.table import inspection_table
    from ..opening import ClassifierOpener
    from ..report.results import console

    with exit_codes():
        chosen = settings(config, model, hf_repo, n_gpu_layers, threads, scoring)
        on_step = None if quiet else print_step
        with (
            ClassifierOpener(offline=offline, on_step=on_step, on_load=load_bar(quiet)) as opener,
            opener.open(chosen) as classifier,
        ):
            inspection = inspect_classifier(classifier)
        if format_ is RecordFormat.json:
            print(inspection.to_json(), flush=True)
        else:
            console().print(inspection_table(inspection))
