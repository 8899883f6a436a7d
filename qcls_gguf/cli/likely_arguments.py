"""What the command line says of arguments in the wrong place: the option or place that they probably belong to."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from typer.core import TyperCommand, TyperGroup

from ..config.resources import OLLAMA, PACKAGE, config_names
from ..errors import ConfigError
from .terminal import exit_codes

_TEXTS = ("--query",)
_FILES = ("--queries", "--data", *_TEXTS)
_CONFIGS = ("--config", "--from")
_MODELS = ("--model",)
_BY_SUFFIX = {
    **dict.fromkeys((".yaml", ".yml"), _CONFIGS),
    ".gguf": _MODELS,
    **dict.fromkeys((".txt", ".csv", ".tsv", ".jsonl"), _FILES),
}
_REMOVED = {
    **dict.fromkeys(
        ((name, old) for name in ("run", "bench", "compare") for old in ("--input", "-i")), "use --queries"
    ),
    ("models", "--json"): "use --format json",
    ("label", "--column"): "use --query-column",
    ("label", "--compare"): "`qcls-gguf bench --batch N` shows the roofline of N queries in a decode",
    ("label", "--order"): "with --cache a query is computed once in any order",
    ("label", "--engine"): "--devices starts several processes; on several machines call label_table in map_batches of "
    "Ray or of another engine",
    ("init", "--column"): "use --label-column",
    ("bench", "--growth"): "give configurations with 1, 2, 4, … prompts, as in -c one.yaml -c two.yaml",
    ("bench", "--growth-to"): "give configurations with 1, 2, 4, … prompts, as in -c one.yaml -c two.yaml",
    **dict.fromkeys(
        (("bench", old) for old in ("--ab", "--forward", "--sms", "--tokens")),
        "kernels are measured by `make kernels` in a clone of the project, see docs/kernels.md",
    ),
    ("bench", "--rate"): "send requests to `qcls-gguf serve` with a load generator for HTTP, or `make load` in a clone",
    ("compare", "--spawn-llama-server"): "start a llama-server, and give its URL as --llama-server; compare prints how",
    ("compare", "--peer-kernels"): "peers run stock kernels; `make kernels` in a clone compares kernels",
    ("compare", "--seed"): "the order of the turns is always the same",
    ("eval", "--batch-invariance"): "label the rows with `label --batch 1` and `--batch 4`, and compare",
    ("advise", "--models"): "give each model in a configuration of its own, as in --also smaller-model.yaml",
    ("advise", "--fetch"): "models of --also are fetched as any other, unless --offline is given",
    ("advise", "--target"): "run advise on the machine that is to be fast",
    ("advise", "--resume"): "a run asks each configuration every query once; give fewer queries",
    ("advise", "--latency-sample"): "every query is timed; give fewer queries",
    ("advise", "--seed"): "the order of the queries is always the same",
}
"""Options that commands had, and what there is instead."""


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
    elif "=" in argument and "--labels" in options:
        wanted = ("--labels",)
    return next((option for option in wanted if option in options), None)


class Command(TyperCommand):
    """A command that says what to write instead of an argument that it does not take."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; refuse an option that was removed with what there is instead."""
        try:
            return super().parse_args(ctx, args)
        except Exception as e:
            if isinstance(said := getattr(e, "message", None), str):
                e.message = said.removeprefix("Value error, ")  # type: ignore[attr-defined]  # how pydantic begins
            option = str(getattr(e, "option_name", None))
            if instead := _REMOVED.get((ctx.info_name, option)):
                with exit_codes():
                    raise ConfigError(f"{option} was removed: {instead}") from None
            raise

    def make_parser(self, ctx: Any) -> Any:
        """Make the parser, which fails with the likely option where an argument belongs to none.

        It does so before what is missing is told: that may be what the argument without its option was meant for.
        """
        parser = super().make_parser(ctx)
        parse = parser.parse_args

        def parse_args(args: list[str]) -> Any:
            given = list(args)
            values, rest, order = parse(args)
            takes_any = any(param.param_type_name == "argument" for param in self.params)
            if not values.get("help") and not takes_any and (remedy := self._remedy(ctx.info_name, given, rest)):
                ctx.fail(remedy)
            return values, rest, order

        parser.parse_args = parse_args  # type: ignore[method-assign]
        return parser

    def _remedy(self, name: str, given: list[str], rest: list[str]) -> str | None:
        options = [option for param in self.params for option in param.opts]
        if not rest:
            return None
        option = likely_option(rest[0], options)
        value = rest[0]
        if option in _TEXTS:  # words of a text without quotes are arguments of their own
            names = next(param.opts for param in self.params if option in param.opts)
            first = [word for before, word in pairwise(given) if before in names]
            value = " ".join([*first[-1:], *rest])
            if first:
                return f"{name} takes no argument {rest[0]!r}: put a text in quotes, {option} {shlex.quote(value)}"
        remedy = f"write {option} {shlex.quote(value)}" if option else f"`qcls-gguf {name} --help` lists its options"
        return f"{name} takes no argument {rest[0]!r}: {remedy}"


class Commands(TyperGroup):
    """All commands; `help` and `version` are the options of these names."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse what stands before the command."""
        if args[:1] == ["help"]:
            args = [*args[1:2], "--help"]
        elif args == ["version"]:
            args = ["--version"]
        if args and not ctx.resilient_parsing:
            self._check_place(ctx, args)
        return super().parse_args(ctx, args)

    def _check_place(self, ctx: Any, args: list[str]) -> None:
        """Fail where the first argument is an option of commands, and no command stands before it."""
        option, *value = args[0].split("=", 1)
        having = {name: param for name, each in self.commands.items() for param in each.params if option in param.opts}
        if having and not any(option in param.opts for param in self.params):
            name = next((argument for argument in args if argument in having), next(iter(having)))
            has_value = not getattr(having[name], "is_flag", False)
            example = shlex.join([name, option, *((value or args[1:2]) if has_value else [])])
            ctx.fail(f"{option} is an option of commands: write it after one, as in qcls-gguf {example}")
