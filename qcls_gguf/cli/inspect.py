"""`qcls-gguf inspect`: parsing and printing only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import ConfigError
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

if TYPE_CHECKING:
    from ..report.record import Record


def inspect_command(
    config: ConfigOption = None,
    model: ModelOption = None,
    hf_repo: RepoOption = None,
    offline: OfflineOption = False,
    n_gpu_layers: LayersOption = None,
    scoring: ScoringOption = None,
    threads: ThreadsOption = None,
    format_: FormatOption = RecordFormat.table,
    show_prompt: Annotated[
        bool, typer.Option("--show-prompt", help="Show the prompts' text and tokens with a query instead.")
    ] = False,
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", metavar="NAME", help="A prompt to show; repeatable. Default: all.")
    ] = None,
    query: Annotated[
        str | None,
        typer.Option("--query", "-q", metavar="TEXT", help="The query for --show-prompt. Default: an empty one."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not print the start-up.")] = False,
) -> None:
    """Show what a configuration costs with a model, before any query, and what could be cheaper or clearer.

    For each prompt it shows the cached tokens, the tokens that every request adds, each label's tokens and the label
    trie; for all prompts together the tokens of an empty query, the sequences and the context; and likely mistakes in
    the prompts. Exit codes are those of run.

    --show-prompt shows what the model reads: the exact text and tokens of each prompt with a query, and the labels.
    Control tokens are in reverse video, cached tokens blue, tokens that the request computes green, and tokens of
    labels yellow, underlined if they are computed too.

    JSON is one object; docs/records.md describes its fields.

    \b
    qcls-gguf inspect --config my.yaml
    qcls-gguf inspect --config my.yaml --show-prompt --prompt colour --query "red dress"
    """
    from ..inspection.inspect import inspect_classifier  # see app.py for why here
    from ..inspection.shown_prompts import show_prompts
    from ..inspection.shown_table import shown_prompts_view
    from ..inspection.table import inspection_table
    from ..opening import ClassifierOpener
    from ..report.results import console

    with exit_codes():
        for name, given in (("--prompt", prompt), ("--query", query)):
            if given is not None and not show_prompt:
                raise ConfigError(f"{name} is for --show-prompt: add it, or leave {name} out")
        chosen = settings(config, model, hf_repo, n_gpu_layers, threads, scoring)
        on_step = None if quiet else print_step
        with (
            ClassifierOpener(offline=offline, on_step=on_step, on_load=load_bar(quiet)) as opener,
            opener.open(chosen) as classifier,
        ):
            if show_prompt:
                record: Record = (shown := show_prompts(classifier, prompt or [], query or ""))
                view = shown_prompts_view(shown)
            else:
                record = (inspection := inspect_classifier(classifier))
                view = inspection_table(inspection)
        if format_ is RecordFormat.json:
            print(record.to_json(), flush=True)
        else:
            console().print(view, crop=False)
