"""The options that several commands have, declared once: they mean the same everywhere."""

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from ..config.resources import DEFAULT_CONFIG, config_names
from ..data.labelled import LabelledColumns
from ..data.rows import Format as FileFormat
from ..data.rows import Reading
from ..errors import ConfigError

if TYPE_CHECKING:
    from ..config.schema import Config

_DEFAULT = "Default: the configuration's."

# fmt: off
ConfigFile = Annotated[Path | None, Option("--config", "-c", metavar="FILE|NAME",
    help="The configuration (prompts, labels, model, runtime): a YAML file, or one that comes with the package: "
    f"{', '.join(config_names())}.")]
ModelName = Annotated[str | None, Option("--model", "-m", metavar="FILE|ollama:NAME[:TAG]|package:NAME",
    help=f"A GGUF file, a model in Ollama's store or in a Python package. {_DEFAULT}")]
Repository = Annotated[str | None, Option("--hf-repo", "-hf", metavar="USER/REPO[@REVISION][:QUANT]",
    help=f"A model on the Hugging Face hub. {_DEFAULT}")]
Offline = Annotated[bool, Option("--offline", help="Download nothing: take models of the hub from the local cache.")]
GpuLayers = Annotated[str | None, Option("--n-gpu-layers", "-ngl", metavar="N|auto|all",
    help=f"Layers on the GPU. {_DEFAULT}")]
Threads = Annotated[str | None, Option("--threads", "-t", metavar="N|auto", help=f"CPU threads. {_DEFAULT}")]
QueryTokens = Annotated[str | None, Option("--max-query-tokens", metavar="N",
    help=f"Most tokens of a query. {_DEFAULT}")]
LongQueries = Annotated[str | None, Option("--long-queries", metavar="refuse|head|tail|middle",
    help=f"What is done with longer queries. {_DEFAULT}")]
ScoringName = Annotated[str | None, Option("--scoring", metavar="tree|first_token|joint|mean",
    help=f"The scoring of every prompt. {_DEFAULT}")]
Query = Annotated[list[str] | None, Option("--query", "-q", metavar="TEXT", help="A query to label; repeatable.")]
Queries = Annotated[str | None, Option("--queries", metavar="FILE|-",
    help="A file with one query a line, or a table: CSV, JSON lines, …")]
QueryColumn = Annotated[str | None, Option("--query-column", metavar="NAME",
    help="The column with the queries. Default: query.")]
InputFormat = Annotated[FileFormat | None, Option("--input-format",
    help="What the file is. Default: by its ending or its content.")]
Encoding = Annotated[str | None, Option("--encoding", metavar="NAME",
    help="The text's encoding. Default: UTF-8, UTF-16 or UTF-32.")]
Delimiter = Annotated[str | None, Option("--delimiter", metavar="C",
    help="What stands between fields. Default: the header's , ; | ^ or tab.")]
_LABELLED = Option("--data", "-d", metavar="FILE", help="Labelled queries, JSON lines or CSV.")
Data = Annotated[Path, _LABELLED]
MaybeData = Annotated[Path | None, _LABELLED]
LabelColumn = Annotated[list[str] | None, Option("--label-column", metavar="NAME",
    help="A column of labels; repeatable. Default: all but the ignored ones.")]
IgnoredColumns = Annotated[str, Option("--ignore-columns", metavar="NAME,…|all",
    help="Columns with neither queries nor labels.")]
SkipBad = Annotated[bool, Option("--skip-bad",
    help="Skip and count rows that cannot be used, instead of refusing the data.")]
PromptNames = Annotated[list[str] | None, Option("--prompt", metavar="NAME",
    help="A prompt to take; repeatable. Default: all.")]
Force = Annotated[bool, Option("--force", help="Overwrite the file.")]
Format = Annotated[Literal["table", "json"], Option("--format", "-f", help="Tables for people, JSON for machines.")]
Html = Annotated[Path | None, Option("--html", metavar="FILE", help="Also write the report as a page.")]
# fmt: on


def _log(verbose: bool) -> None:
    """Print what the package logs: warnings, or everything, also of llama.cpp, whose other words are for developers."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s" if verbose else "qcls-gguf: warning: %(message)s"))
    log, llama = logging.getLogger("qcls_gguf"), logging.getLogger("qcls_gguf.llama")
    log.handlers = [handler]
    log.setLevel(logging.DEBUG if verbose else logging.WARNING)
    llama.setLevel(logging.DEBUG if verbose else logging.WARNING)
    llama.filters = [] if verbose else [lambda record: "bad special token" in record.getMessage()]


# fmt: off
Verbose = Annotated[bool, Option("--verbose", "-v", callback=_log, help="Show what the package and llama.cpp log.")]
Quiet = Annotated[bool, Option("--quiet", help="Show neither the start-up nor the progress.")]
# fmt: on


_RUNTIME = ("n_gpu_layers", "n_threads", "max_query_tokens", "long_queries")


def configured(given: Mapping[str, Any]) -> "Config":
    """The configuration with what the given options of a command override. Raises ConfigError."""
    from ..config.load import load_config  # see app.py for why here
    from ..config.schema import ModelConfig

    model: Any = {"path": given["model"], "hf_repo": given["hf_repo"]}
    only_one(model=model["path"], hf_repo=model["hf_repo"])
    found = load_config(given["config"] or DEFAULT_CONFIG)
    runtime: dict[str, Any] = {}
    for key in _RUNTIME:
        if (value := given[key]) is not None:
            runtime[key] = int(value) if value.isascii() and value.isdecimal() else value
    try:
        if any(value is not None for value in model.values()):  # how it is asked stays as the configuration says
            kept = {key: getattr(found.model, key) for key in ("chat_template", "chat_variables")}
            found = found.changed(model=ModelConfig(**model, **kept))
        if runtime:
            found = found.changed(runtime=found.runtime.changed(**runtime))
        if (scoring := given.get("scoring")) is not None:
            found = found.changed(prompts=tuple(prompt.changed(scoring=scoring) for prompt in found.prompts))
    except ConfigError as e:
        place, _, what = str(e).partition(": ")
        key = place.rpartition(".")[2]
        option = {"path": "model", "n_threads": "threads"}.get(key, key).replace("_", "-")
        raise ConfigError(f"--{option}: {what}") from None
    return found


def reading(given: Mapping[str, Any]) -> Reading:
    """How the given options of a command say that files are read."""
    return Reading(
        query=given["query_column"],
        format=given["input_format"],
        encoding=given["encoding"],
        delimiter=given["delimiter"],
    )


def columns(given: Mapping[str, Any]) -> LabelledColumns:
    """The same of labelled queries."""
    ignored = tuple(name.strip() for name in given["ignore_columns"].split(",") if name.strip())
    labels = tuple(given["label_column"] or ())
    return LabelledColumns(**dataclasses.asdict(reading(given)), labels=labels, ignored=ignored)


def only_one(**given: object) -> None:
    """Raise ConfigError where more than one of these options is given."""
    names = [f"--{name.replace('_', '-')}" for name, value in given.items() if value]
    if len(names) > 1:
        raise ConfigError(f"{' and '.join(names)} are {'both' if len(names) == 2 else 'all'} given: keep one of them")
