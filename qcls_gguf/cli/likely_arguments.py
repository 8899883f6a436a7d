"""Messages for arguments in the wrong place, and for options that were removed."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from typer.core import TyperCommand, TyperGroup

from ..config.resources import OLLAMA, PACKAGE, config_names
from ..errors import ConfigError
from .terminal import exit_codes

_TEXTS = ("--query",)
_FILES = ("--queries", "--data", *_TEXTS)
_CONFIGS = ("--config",)
_MODELS = ("--model",)
_BY_SUFFIX = {
    **dict.fromkeys((".yaml", ".yml"), _CONFIGS),
    ".gguf": _MODELS,
    **dict.fromkeys((".txt", ".csv", ".tsv", ".jsonl"), _FILES),
}
_REMOVED = Path(__file__).with_name("removed_options.txt")
"""a line for each removal: commands, options that they had, what there is instead"""


def likely_option(argument: str, options: Iterable[str]) -> str | None:
    """Which of a command's options such an argument probably belongs to; None where nothing suggests one."""
    path = Path(argument)
    wanted = _BY_SUFFIX.get(path.suffix.lower(), _TEXTS)
    if argument in config_names():
        wanted = _CONFIGS
    elif argument.startswith((OLLAMA, PACKAGE)):
        wanted = _MODELS
    elif argument == "-" or (wanted is _TEXTS and path.is_file()):
        wanted = _FILES
    return next((option for option in wanted if option in options), None)


def instead_of(command: str, name: str) -> str | None:
    """What there is instead of a command's option, or of a command of qcls-gguf, that was removed; None: it was not."""
    for line in _REMOVED.read_text(encoding="utf-8").splitlines():
        commands, names, instead = line.split(": ", 2)
        if command in commands.split() and name in names.split():
            return f"{name} was removed: {instead}"
    return None


class Command(TyperCommand):
    """A command that says what to write instead of an argument that it does not take."""

    allow_extra_args = True  # which are refused here

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; refuse an option that was removed with what there is instead."""
        try:
            rest = super().parse_args(ctx, args)
        except Exception as e:
            if isinstance(said := getattr(e, "message", None), str):
                e.message = said.removeprefix("Value error, ")  # type: ignore[attr-defined]  # how pydantic begins
            given = str(getattr(e, "option_name", None))
            if instead := instead_of(str(ctx.info_name), given):
                with exit_codes():
                    raise ConfigError(instead) from None
            commands = ctx.parent.command.commands if ctx.parent else {}
            others = [name for name, each in commands.items() if any(given in param.opts for param in each.params)]
            if others and ctx.info_name not in others:
                ctx.fail(f"{ctx.info_name} has no {given}, which is an option of {', '.join(others)}")
            raise
        if rest:
            option = likely_option(rest[0], [option for param in self.params for option in param.opts])
            remedy = f"write {option} {shlex.quote(rest[0])}" if option else "`--help` lists its options"
            quotes = ", and put a text of several words in quotes" if option in _TEXTS else ""
            ctx.fail(f"{ctx.info_name} takes no argument {rest[0]!r}: {remedy}{quotes}")
        return rest


class Commands(TyperGroup):
    """All commands; `help` and `version` are the options of these names."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse what stands before the command."""
        if args[:1] == ["help"]:
            args = [*args[1:2], "--help"]
        elif args == ["version"]:
            args = ["--version"]
        elif args and (instead := instead_of(args[0], "all")):
            with exit_codes():
                raise ConfigError(instead)
        return super().parse_args(ctx, args)
