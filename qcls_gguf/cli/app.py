"""The commands of `qcls-gguf`, and what it prints without one.

Modules of commands import at their top what parses options, and what works inside the functions that work: --help and
--version need neither numpy nor a model, and answer in half the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from ..version import __version__
from .advise import advise_command
from .bench import bench_command
from .calibrate import calibrate_command
from .compare import compare_command
from .evaluate import eval_command
from .init import init_command
from .inspect import inspect_command
from .label import label_command
from .likely_arguments import Command, Commands
from .models import models_command
from .run import run_command
from .schema import schema_command
from .serve import serve_command

app = typer.Typer(
    cls=Commands,
    context_settings={"help_option_names": ["--help", "-h"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Label queries with a GGUF language model: several prompts with closed label sets, answered by one decode.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from .terminal import exit_codes

        with exit_codes():
            _print_version()
        raise typer.Exit


def _print_version() -> None:
    from ..native import build_info
    from ..native.features import cpu_variant, instruction_sets

    build, variant = build_info(), cpu_variant()
    print(f"qcls-gguf {__version__}, llama.cpp {build.llama_cpp_commit} patched, {build.backend}")
    whose = f"variant {variant} of a portable build" if variant else "a build for one kind of processor"
    print(f"CPU code for {' '.join(instruction_sets()) or 'no special instruction set'} ({whose})")


@app.callback()
def _top(
    version: Annotated[bool, typer.Option("--version", callback=_version, help="Print the versions and exit.")] = False,
) -> None:
    pass


_COMMANDS: dict[str, Callable[..., None]] = {
    "run": run_command,
    "label": label_command,
    "init": init_command,
    "inspect": inspect_command,
    "eval": eval_command,
    "calibrate": calibrate_command,
    "advise": advise_command,
    "compare": compare_command,
    "bench": bench_command,
    "models": models_command,
    "serve": serve_command,
    "schema": schema_command,
}
for _name, _command in _COMMANDS.items():
    app.command(_name, cls=Command)(_command)
