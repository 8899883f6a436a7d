"""The command line: parsing and printing only."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from . import Classifier, Config, ModelConfig, __version__, load_config
from .errors import ConfigError, ModelError, QclsError
from .native import build_info
from .queries import Line, check_source, read_queries
from .report import console, printable, result_table
from .resources import config_path

EXIT_OTHER, EXIT_USAGE, EXIT_MODEL, EXIT_INTERRUPTED = 1, 2, 3, 130

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Label queries with a GGUF language model: N prompts, closed label sets, one decode.",
)


class Format(StrEnum):
    """How results are printed."""

    table = "table"
    json = "json"
    jsonl = "jsonl"


def _layers(text: str) -> int | Literal["auto", "all"]:
    if text in ("auto", "all"):
        return "auto" if text == "auto" else "all"
    if not text.isdecimal():
        raise typer.BadParameter(f"{text!r} is not a number of layers, auto or all")
    return int(text)


def _version(wanted: bool) -> None:
    if wanted:
        build = build_info()
        print(f"qcls-gguf {__version__}, llama.cpp {build.llama_cpp_commit} patched, {build.backend}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[bool, typer.Option("--version", callback=_version, help="Print the versions and exit.")] = False,
) -> None:
    pass


@app.command()
def run(
    query: Annotated[
        list[str] | None, typer.Option("--query", "-q", metavar="TEXT", help="A query to label; repeatable.")
    ] = None,
    input_: Annotated[
        str | None, typer.Option("--input", "-i", metavar="FILE|-", help="A query a line, labelled as they come.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Prompts, labels, model and runtime (YAML).", metavar="FILE")
    ] = None,
    model: Annotated[
        Path | None, typer.Option("--model", "-m", help="A GGUF file, instead of the configuration's.", metavar="FILE")
    ] = None,
    hf_repo: Annotated[
        str | None,
        typer.Option("--hf-repo", "-hf", help="A model of the Hugging Face hub.", metavar="USER/REPO[:QUANT]"),
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Take a model of the hub from the local cache only.")
    ] = False,
    n_gpu_layers: Annotated[
        str | None, typer.Option("--n-gpu-layers", "-ngl", help="Layers on the GPU.", metavar="N|auto|all")
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", "-t", min=1, max=512, metavar="N", help="CPU threads.")
    ] = None,
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
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        if input_:
            check_source(input_)
        settings = _settings(config, model, hf_repo, n_gpu_layers, threads)
        with Classifier.from_config(
            settings, offline=offline, on_step=None if quiet else _print_step, on_load=_load_bar(quiet)
        ) as classifier:
            failed = _label(classifier, _queries(query, input_, interactive), format_, top)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except BrokenPipeError:
        # whoever read our output has left; a flush at exit would fail once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
    except ConfigError as e:
        _fail(e, EXIT_USAGE)
    except ModelError as e:
        _fail(e, EXIT_MODEL)
    except QclsError as e:
        _fail(e, EXIT_OTHER)
    if failed:
        raise typer.Exit(EXIT_OTHER)


def _fail(error: Exception, code: int) -> NoReturn:
    print(f"qcls-gguf: {error}", file=sys.stderr)
    raise typer.Exit(code)


def _settings(
    path: Path | None, model: Path | None, hf_repo: str | None, n_gpu_layers: str | None, threads: int | None
) -> Config:
    """The configuration with what the command line overrides."""
    if model and hf_repo:
        raise ConfigError("--model and --hf-repo are both given: keep one of them")
    settings = load_config(path or config_path("fashion-8.yaml"))
    runtime = settings.runtime
    if n_gpu_layers is not None:
        runtime = dataclasses.replace(runtime, n_gpu_layers=_layers(n_gpu_layers))
    if threads is not None:
        runtime = dataclasses.replace(runtime, n_threads=threads)
    if model or hf_repo:
        settings = dataclasses.replace(settings, model=ModelConfig(path=model, hf_repo=hf_repo))
    return dataclasses.replace(settings, runtime=runtime)


def _queries(given: list[str] | None, source: str | None, interactive: bool) -> Iterator[Line]:
    for text in given or []:
        yield Line(text)
    if source:
        yield from read_queries(source)
    if sys.stdin.isatty() and source != "-" and (interactive or not (given or source)):
        yield from _ask()
    elif not (given or source or interactive):
        yield from read_queries("-")


def _ask() -> Iterator[Line]:
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
    print(json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False), flush=True)


def _print_step(name: str, what: str, ms: float) -> None:
    print(f"{name:16}{ms:10.1f} ms  {what}", file=sys.stderr)


def _load_bar(quiet: bool) -> Callable[[float], None] | None:
    """A percentage on the terminal while a large model loads."""
    if quiet or not sys.stderr.isatty():
        return None

    def show(fraction: float) -> None:
        # the line is overwritten by the step's own line
        print(f"\rload model {fraction:6.0%}", end="\r" if fraction < 1 else "\r\033[K", file=sys.stderr, flush=True)

    return show


def main() -> None:
    """The entry point of the `qcls-gguf` command."""
    app()
