"""`qcls-gguf run`: queries given, read or typed, labelled and printed as they come."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from ..data.queries import Line, check_source, read_queries
from ..errors import QclsError
from ..report.json_text import json_text
from .options import (
    ConfigOption,
    LayersOption,
    ModelOption,
    OfflineOption,
    RepoOption,
    ScoringOption,
    StateCacheOption,
    ThreadsOption,
    TryModelOption,
    settings,
)
from .terminal import EXIT_OTHER, exit_codes, load_bar, print_step

if TYPE_CHECKING:
    from ..classifier import Classifier


class Format(StrEnum):
    """How results are printed."""

    table = "table"
    json = "json"
    jsonl = "jsonl"


def run_command(
    query: Annotated[
        list[str] | None, typer.Option("--query", "-q", metavar="TEXT", help="A query to label; repeatable.")
    ] = None,
    input_: Annotated[
        str | None, typer.Option("--input", "-i", metavar="FILE|-", help="A query a line, labelled as they come.")
    ] = None,
    config: ConfigOption = None,
    model: ModelOption = None,
    hf_repo: RepoOption = None,
    offline: OfflineOption = False,
    no_state_cache: StateCacheOption = False,
    no_try_model: TryModelOption = False,
    n_gpu_layers: LayersOption = None,
    scoring: ScoringOption = None,
    audit: Annotated[
        bool, typer.Option("--audit", help="Add joint, mean and label mass, and whether joint picks another label.")
    ] = False,
    threads: ThreadsOption = None,
    format_: Annotated[
        Format, typer.Option("--format", "-f", help="A table for people, JSON for machines.")
    ] = Format.table,
    top: Annotated[
        int, typer.Option("--top", min=0, metavar="N", help="Labels a prompt shows in the table; 0 shows all.")
    ] = 3,
    interactive: Annotated[
        bool, typer.Option("--interactive", "-I", help="After the queries given, go on asking, on a terminal.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not print the start-up.")] = False,
) -> None:
    """Label queries by every prompt of a configuration.

    Without arguments the embedded model labels fashion queries by eight prompts: interactively on a terminal, or a
    query a line from standard input. Results go to standard output, everything else to standard error.

    JSON is one object a query, indented (json) or on a line (jsonl); a query that cannot be labelled gives
    {"query", "error"}, and the exit code 1 in the end. Other exit codes: 2 for usage and configuration, 3 for a model
    that can't be loaded.

    \b
    qcls-gguf run --query "red dress for girls" --query "孕妇牛仔裤"
    qcls-gguf run --input queries.txt --format jsonl > labels.jsonl
    qcls-gguf run --config my.yaml -hf Qwen/Qwen3-8B-GGUF:Q4_K_M -ngl all
    """
    from ..classifier import Classifier  # see app.py for why here

    with exit_codes():
        if input_ is not None:
            check_source(input_)
        chosen = settings(
            config,
            model,
            hf_repo,
            n_gpu_layers,
            threads,
            scoring,
            no_state_cache=no_state_cache,
            no_try_model=no_try_model,
        )
        with Classifier.from_config(
            chosen, offline=offline, on_step=None if quiet else print_step, on_load=load_bar(quiet), audit=audit
        ) as classifier:
            failed = _label(classifier, _queries(query, input_, interactive), format_, top)
    if failed:
        raise typer.Exit(EXIT_OTHER)


def _queries(given: list[str] | None, source: str | None, interactive: bool) -> Iterator[Line]:
    for text in given or []:
        yield Line(text)
    if source is not None:
        yield from read_queries(source)
    if sys.stdin.isatty() and source != "-" and (interactive or not (given or source is not None)):
        yield from _ask()
    elif not (given or source is not None or interactive):
        yield from read_queries("-")


def _ask() -> Iterator[Line]:
    with suppress(ImportError):
        import readline  # noqa: F401  (gives input() its line editing)

    print("Type a query; an empty line or Ctrl-D ends.", file=sys.stderr)
    while True:
        try:
            if sys.stdout.isatty():
                text = input("query> ")
            else:
                print("query> ", end="", file=sys.stderr, flush=True)
                text = input()
        except EOFError:
            print(file=sys.stderr)
            return
        if not text.strip():
            return
        yield Line(text)


def _label(classifier: Classifier, lines: Iterator[Line], format_: Format, top: int) -> bool:
    """Label and print queries as they come; returns whether any failed."""
    from ..report.results import console, printable, result_table

    out = console()
    failed = False
    for line in lines:
        try:
            if line.error:
                raise QclsError(line.error)
            result = classifier.classify(line.text)
        except QclsError as e:
            failed = True
            print(f"qcls-gguf: {printable(line.text[:60])!r}: {e}", file=sys.stderr)
            if format_ is not Format.table:
                _print_json({"query": line.text, "error": str(e)}, format_)
            continue
        if format_ is Format.table:
            out.print(result_table(result, top))
        else:
            _print_json(result.to_dict(), format_)
    return failed


def _print_json(value: dict[str, object], format_: Format) -> None:
    indent = 2 if format_ is Format.json else None
    print(json_text(value, indent=indent), flush=True)
