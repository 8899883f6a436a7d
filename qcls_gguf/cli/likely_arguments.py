"""What the command line says of arguments in the wrong place, and of options that it had."""

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
_REMOVED = (
    ("run bench compare", "--input -i", "use --queries"),
    ("run", "--header", "--format json describes the model"),
    ("run", "--id", "lines have their numbers; `qcls-gguf label` keeps all columns"),
    ("run", "--scores", "use --top"),
    ("models", "--json", "use --format json"),
    ("label", "--column", "use --query-column"),
    ("label", "--compare", "`qcls-gguf bench --batch N` shows the roofline of N queries in a decode"),
    ("label", "--order", "with --cache a query is computed once in any order"),
    ("label", "--engine", "use --part, with an output for each run"),
    ("label", "--devices", "start a run on each device, as in CUDA_VISIBLE_DEVICES=0 … --part 1/2"),
    ("label", "--sample --seed", "use --limit"),
    ("label", "--redo-changed", "use --overwrite; with --cache known queries are not computed again"),
    ("label", "--strict", "the column `error` has the reasons, --summary json their number"),
    ("init", "--column", "use --label-column"),
    ("init", "--from", "copy the configuration; --model and --hf-repo of every command replace the model it names"),
    ("bench", "--growth --growth-to", "give configurations with 1, 2, 4, … prompts, as in -c one.yaml -c two.yaml"),
    ("bench", "--ab --forward --sms --tokens", "`make kernels` in a clone of the project, see docs/kernels.md"),
    ("bench", "--rate", "send requests to `qcls-gguf serve` with a load generator for HTTP, or `make load` in a clone"),
    ("bench", "--full", "give -c mission -c fashion-8 -c fashion-8-joint --batch 1 --batch 4"),
    ("bench", "--idle", "times after a silence are in docs/measurements.md"),
    ("bench compare", "--out -o", "use --format json, and send the output to a file"),
    ("compare", "--spawn-llama-server", "start a llama-server, and give its URL as --llama-server; compare prints how"),
    ("compare", "--peer-kernels", "peers run stock kernels; `make kernels` in a clone compares kernels"),
    ("compare", "--seed", "the order of the turns is always the same"),
    ("eval calibrate", "--resume", "every row is scored again; give fewer rows"),
    ("calibrate", "--bias", "`qcls-gguf learn` corrects which label wins"),
    ("eval", "--audit", "add --scoring joint"),
    ("eval", "--latency-sample", "`qcls-gguf bench` measures times, of several configurations in turns"),
    ("eval", "--batch-invariance", "label the rows with `label --batch 1` and `--batch 4`, and compare"),
    ("advise", "--models --fetch", "give each model in a configuration of its own, as in --also smaller-model.yaml"),
    ("advise", "--target", "run advise on the machine that is to be fast"),
    ("advise", "--resume --latency-sample --seed", "all queries are asked in one order; give fewer of them"),
    ("serve", "--keep-results", "keep answers in a cache before the service; `kept_queries` helps clients that type"),
    ("serve", "--cors-origin", "let a proxy before the service send the headers, see docs/serving/nginx.conf"),
    ("serve", "--log-format", "lines are name=value; --quiet leaves out those of requests"),
    ("serve", "--uds", "use --host 127.0.0.1 and --port"),
    ("serve", "--max-wait --max-tokens", "use --max-requests: a request waits for so many others at most"),
    ("serve", "--max-questions", "use --max-queries"),
    ("serve", "--api-keys", "put the keys into QCLS_API_KEY, between spaces or on lines"),
    ("serve", "--max-options --max-question-bytes", "questions may be as large as fits"),
)
"""(commands, options that they had, what there is instead)"""


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
            for commands, options, instead in _REMOVED:
                if ctx.info_name in commands.split() and given in options.split():
                    with exit_codes():
                        raise ConfigError(f"{given} was removed: {instead}") from None
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
        return super().parse_args(ctx, args)
