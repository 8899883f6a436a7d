"""Options that several commands have, and the configuration that they override."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..config.resources import DEFAULT_CONFIG, config_names
from ..config.scoring import SCORINGS, parse_scoring
from ..data.labelled import LabelledColumns
from ..data.queries import QUERY
from ..errors import ConfigError

if TYPE_CHECKING:
    from ..config.schema import Config


class RecordFormat(StrEnum):
    """How a command prints its one record."""

    table = "table"
    json = "json"


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        help="The configuration (prompts, labels, model, runtime): a YAML file, or one that comes with the package: "
        f"{', '.join(config_names())}.",
        metavar="FILE|NAME",
    ),
]
ModelOption = Annotated[
    Path | None,
    typer.Option(
        "--model", "-m", help="A GGUF file, or the name of a model in Ollama's store.", metavar="FILE|ollama:NAME[:TAG]"
    ),
]
RepoOption = Annotated[
    str | None,
    typer.Option("--hf-repo", "-hf", help="A model on the Hugging Face hub.", metavar="USER/REPO[@REVISION][:QUANT]"),
]
OfflineOption = Annotated[
    bool, typer.Option("--offline", help="Download nothing: take models of the hub from the local cache.")
]
StateCacheOption = Annotated[
    bool, typer.Option("--no-state-cache", help="Compute all prefixes, even those that an earlier start saved.")
]
TryModelOption = Annotated[
    bool, typer.Option("--no-try-model", help="Load the model without trying it in a separate process first.")
]
LayersOption = Annotated[
    str | None,
    typer.Option(
        "--n-gpu-layers", "-ngl", help="Layers on the GPU. Default: the configuration's.", metavar="N|auto|all"
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option("--threads", "-t", min=1, max=512, metavar="N", help="CPU threads. Default: the configuration's."),
]
ScoringOption = Annotated[
    str | None,
    typer.Option(
        "--scoring", help="The scoring of every prompt. Default: the configuration's.", metavar="|".join(SCORINGS)
    ),
]
FormatOption = Annotated[RecordFormat, typer.Option("--format", "-f", help="A table for people, JSON for machines.")]
TablesFormatOption = Annotated[
    RecordFormat, typer.Option("--format", "-f", help="Tables for people, JSON for machines.")
]
DiagramOption = Annotated[
    Path | None, typer.Option("--html", help="Also write a report with a diagram.", metavar="FILE")
]
DiagramsOption = Annotated[
    Path | None, typer.Option("--html", help="Also write a report with diagrams.", metavar="FILE")
]
ResumeOption = Annotated[
    Path | None,
    typer.Option("--resume", help="Save each row's scores here, and reuse those that are there.", metavar="FILE"),
]
QueryColumnOption = Annotated[
    str | None, typer.Option("--query-column", metavar="NAME", help="The column with the queries. Default: query.")
]
IgnoreColumnsOption = Annotated[
    str | None,
    typer.Option("--ignore-columns", metavar="NAME,…|all", help="Columns of CSV that are neither query nor prompt."),
]
SkipBadOption = Annotated[
    bool, typer.Option("--skip-bad", help="Skip and count rows that cannot be used, instead of refusing the data.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Do not show the progress.")]


def _layers(text: str) -> int | Literal["auto", "all"]:
    if text in ("auto", "all"):
        return "auto" if text == "auto" else "all"
    if not text.isdecimal():
        raise typer.BadParameter(f"{text!r} is not a number of layers, auto or all")
    return int(text)


def labelled_columns(query: str | None, ignored: str | None) -> LabelledColumns:
    """Which columns of labelled queries are read."""
    names = tuple(name.strip() for name in (ignored or "").split(",") if name.strip())
    return LabelledColumns(query=query or QUERY, ignored=names)


def settings(
    path: Path | None,
    model: Path | None,
    hf_repo: str | None,
    n_gpu_layers: str | None,
    threads: int | None,
    scoring: str | None = None,
    *,
    no_state_cache: bool = False,
    no_try_model: bool = False,
) -> Config:
    """The configuration with what the command line overrides."""
    from ..config.load import load_config  # see app.py for why here
    from ..config.schema import ModelConfig

    if hf_repo is not None and not hf_repo.strip():
        raise ConfigError("--hf-repo is empty: give USER/REPO[@REVISION][:QUANT], or leave it out")
    if model is not None and hf_repo is not None:
        raise ConfigError("--model and --hf-repo are both given: keep one of them")
    config = load_config(path or DEFAULT_CONFIG)
    runtime = config.runtime
    if n_gpu_layers is not None:
        runtime = dataclasses.replace(runtime, n_gpu_layers=_layers(n_gpu_layers))
    if threads is not None:
        runtime = dataclasses.replace(runtime, n_threads=threads)
    if no_state_cache:
        runtime = dataclasses.replace(runtime, state_cache=False)
    if no_try_model:
        runtime = dataclasses.replace(runtime, try_model=False)
    if model is not None or hf_repo is not None:
        config = dataclasses.replace(config, model=ModelConfig(path=model, hf_repo=hf_repo))
    prompts = config.prompts
    if scoring is not None:
        chosen = parse_scoring(scoring, "--scoring")
        prompts = tuple(dataclasses.replace(prompt, scoring=chosen) for prompt in prompts)
    return dataclasses.replace(config, runtime=runtime, prompts=prompts)
