"""The commands of `qcls-gguf`, and what it prints without one.

Modules of commands import at their top what parses options, and what works inside the functions that work: --help and
--version need neither numpy nor a model, and answer in half the time.
"""

import inspect
import math
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from ..config.words import instead_of
from ..errors import ConfigError
from ..version import __version__
from .configuring import init, inspect_config, models, schema
from .labelled import calibrate, evaluate, learn
from .measured import bench, compare
from .run import label, run, serve
from .terminal import OPTIONS, exit_codes


class _Commands(TyperGroup):
    """The commands; of one that was removed it says what there is instead."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of this name."""
        with exit_codes():
            if instead := instead_of(args[0], "all"):
                raise ConfigError(f"{args[0]} was removed: {instead}")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_Commands,
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


class _Command(TyperCommand):
    """A command whose error is a line, and which knows what there is instead of an option that was removed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments."""
        try:
            return super().parse_args(ctx, args)
        except Exception as e:  # of click, which newer versions of typer bring along
            if not isinstance(said := getattr(e, "message", None), str):
                raise
            options = [str(getattr(e, "option_name", "")), *getattr(getattr(e, "param", None), "opts", ())]
            found = [(option, instead) for option in options if (instead := instead_of(self.name or "", option))]
            if found and hasattr(e, "option_name"):
                with exit_codes():
                    raise ConfigError("{} was removed: {}".format(*found[0])) from None
            more = "".join(f"; {instead}" for _, instead in found[:1])
            e.message = said.removeprefix("Value error, ") + more  # type: ignore[attr-defined]  # how pydantic begins
            raise

    def invoke(self, ctx: Any) -> None:
        """Run the command, and exit with the number that it returns."""
        OPTIONS.clear()
        OPTIONS.update(option for parameter in self.params for option in parameter.opts)
        with exit_codes():
            for parameter in self.params:
                value = ctx.params.get(parameter.name)
                if isinstance(value, float) and not math.isfinite(value):
                    raise ConfigError(f"{parameter.opts[0]} {value}: give a finite number")
            code = super().invoke(ctx)
        if code:
            raise typer.Exit(code)


COMMANDS: dict[str, Callable[..., Any]] = {
    **{"run": run, "label": label, "init": init, "inspect": inspect_config, "eval": evaluate, "learn": learn},
    **{"calibrate": calibrate, "compare": compare, "bench": bench, "models": models, "serve": serve, "schema": schema},
}
for _name, _function in COMMANDS.items():
    _about, _, _details = inspect.cleandoc(_function.__doc__ or "").partition("\n\n")  # the options stand between them
    app.command(_name, cls=_Command, help=_about, short_help=_about.replace("\n", " "), epilog=_details)(_function)
