"""Options as values: a command takes classes whose fields are its options, and Typer parses them.

Options that override the configuration have their help and their choices from its JSON Schema, which is a file, so that
--help loads nothing that checks configurations.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer

from ..config.resources import DEFAULT_CONFIG, config_names, schema_path
from ..config.words import JsonObject, printable_lines
from ..data.labelled import LabelledColumns
from ..data.rows import Format, Reading
from ..errors import ConfigError
from ..report.files import Output, show_and_write
from .terminal import EXIT_OTHER, OPTIONS, exit_codes, say

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..config.schema import Config
    from ..evaluation.records import FittedRecord
    from ..report.record import Record

T = TypeVar("T")
REQUIRED = dataclasses.MISSING
RecordFormat = Literal["table", "json"]
_TYPES = {"model": "ModelConfig", "runtime": "RuntimeConfig", "prompts": "PromptConfig"}


def option(names: str, text: str, default: Any = None, *, low: float | None = None, high: float | None = None) -> Any:
    """A field that is an option, of a class that is a parameter of a command.

    names: the option's, and what stands for its value in the help, such as `--data -d FILE`; low and high: the range of
    a number.
    """
    words = names.split(" ")
    own = [word for word in words if word.startswith("-")]
    OPTIONS.update(each for word in own for each in word.split("/"))
    metavar = " ".join(word for word in words if word not in own) or None
    info = typer.Option(*own, metavar=metavar, help=text, min=low, max=high)
    return dataclasses.field(default=default, metadata={"parameter": info, "name": own[0].partition("/")[0]})


def argument(metavar: str, text: str) -> Any:
    """A field that is a command's argument."""
    return dataclasses.field(metadata={"parameter": typer.Argument(metavar=metavar, help=text)})


def overriding(key: str, names: str, text: str | None = None) -> Any:
    """An option that overrides a key of the configuration, such as `runtime.n_threads`; text: in place of the key's."""
    room, name = key.split(".")
    schema: JsonObject = _definitions()[_TYPES[room]]["properties"][name]
    about = text or schema["description"]
    field = option(names, f"{about[0].upper()}{about[1:].rstrip('.')}. Default: the configuration's.")
    info = field.metadata["parameter"]
    if info.metavar is None and schema.get("type") != "boolean":
        kinds = schema.get("anyOf", [schema])
        info.metavar = "|".join(
            word for kind in kinds for word in kind.get("enum", [kind.get("const", "N")]) if kind.get("type") != "null"
        )
    return dataclasses.field(default=None, metadata={**field.metadata, "key": key})


@functools.cache
def _definitions() -> JsonObject:
    try:
        schema: JsonObject = json.loads(schema_path().read_text(encoding="utf-8"))
    except ValueError:  # empty where a shell sends the output of `schema` there
        from ..config.load import config_json_schema

        schema = config_json_schema()
    return schema["$defs"]  # type: ignore[no-any-return]


def command(function: Callable[..., int | None]) -> Callable[..., None]:
    """The function as a command of Typer, with an option for each field of the classes that are its parameters.

    The command exits with the number that the function returns, or with one of `exit_codes`.
    """
    groups = {name: group for name, group in get_type_hints(function).items() if name != "return"}
    fields = {
        f"{name}_{field.name}": (name, field, kinds[field.name])
        for name, group in groups.items()
        for kinds in [get_type_hints(group)]
        for field in dataclasses.fields(group)
    }

    def run(**values: Any) -> None:
        with exit_codes():
            chosen: dict[str, JsonObject] = {name: {} for name in groups}
            for own, (name, field, kind) in fields.items():
                if isinstance(values[own], float) and not math.isfinite(values[own]):
                    raise ConfigError(f"{field.metadata['name']} {values[own]}: give a finite number")
                chosen[name][field.name] = tuple(values[own] or ()) if get_origin(kind) is tuple else values[own]
            code = function(**{name: group(**chosen[name]) for name, group in groups.items()})
        if code:
            raise typer.Exit(code)

    parameters = [
        inspect.Parameter(
            own,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is REQUIRED else field.default,
            annotation=Annotated[
                list[get_args(kind)[0]] if get_origin(kind) is tuple else kind,  # type: ignore[misc]
                field.metadata["parameter"],
            ],
        )
        for own, (_, field, kind) in fields.items()
    ]
    run.__name__, run.__doc__ = function.__name__, function.__doc__
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def settings_of(kind: type[T], *groups: object, **given: object) -> T:
    """Settings of a tool: the given ones, and from the options those of the same names."""
    names = [field.name for field in dataclasses.fields(kind) if field.name not in given]  # type: ignore[arg-type]
    found = {name: getattr(group, name) for group in groups for name in names if hasattr(group, name)}
    return kind(**found, **given)


def only_one(**given: object) -> None:
    """Raise ConfigError where more than one of these options is given."""
    names = [f"--{name.strip('_').replace('_', '-')}" for name, value in given.items() if value]
    if len(names) > 1:
        raise ConfigError(f"{' and '.join(names)} are {'both' if len(names) == 2 else 'all'} given: keep one of them")


@dataclass(frozen=True, slots=True, kw_only=True)
class Printing:
    """How a command prints its record."""

    format: RecordFormat = option("--format -f", "Tables for people, JSON for machines.", "table")
    quiet: bool = option("--quiet", "Show neither the start-up nor the progress.", False)

    def show(self, record: Record, view: RenderableType, outputs: Sequence[Output] = ()) -> None:
        """Print a record as JSON or as its view, then write the files. Raises what `show_and_write` raises."""

        def show() -> None:
            from ..report.document import console

            if self.format == "json":
                print(record.to_json())
            else:
                console().print(view, crop=False)

        show_and_write(show, outputs)

    def show_fit(
        self,
        record: FittedRecord,
        view: RenderableType,
        content: str | bytes | None,
        *,
        key: str,
        why_not: str,
        left_out: Sequence[str] = (),
    ) -> int:
        """Print a record, write the content, if there is any, and say what was written, or why nothing was.

        key: of the file in the configuration; left_out: prompts that are not in it. Returns the exit code.
        """
        self.show(
            record, view, [Output("--out", Path(record.written), lambda: content or "")] if record.written else []
        )
        but = f"; left out: {', '.join(left_out)}" if left_out else ""
        written = f"written: {record.written}{but}; to use it, name it in the configuration: `{key}: FILE`"
        if not self.quiet:
            say(printable_lines(written if record.written else f"nothing written: {why_not}"))
        return 0 if record.written else EXIT_OTHER


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporting(Printing):
    """How a command reports its record."""

    html: Path | None = option("--html FILE", "Also write the report as a page.")

    def show(self, record: Record, view: RenderableType, outputs: Sequence[Output] = ()) -> None:
        """The same; view: a Document, of which the page is made as well."""

        def page() -> str:
            from ..report.html import document_page  # matplotlib is an extra

            return document_page(view)  # type: ignore[arg-type]

        own = [] if self.html is None else [Output("--html", self.html, page)]
        Printing.show(self, record, view, [*outputs, *own])


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """How a file of rows is read."""

    query_column: str | None = option("--query-column NAME", "The column with the queries. Default: query.")
    input_format: Format | None = option("--input-format", "What the file is. Default: by its ending or its content.")
    encoding: str | None = option("--encoding NAME", "The text's encoding. Default: UTF-8, UTF-16 or UTF-32.")
    delimiter: str | None = option("--delimiter C", "What stands between fields. Default: the header's , ; | ^ or tab.")

    @property
    def reading(self) -> Reading:
        """How the file is read."""
        return Reading(
            query=self.query_column, format=self.input_format, encoding=self.encoding, delimiter=self.delimiter
        )

    @property
    def given(self) -> str | None:
        """One of these options that is given."""
        names = ("query_column", "input_format", "encoding", "delimiter")
        return next((f"--{name.replace('_', '-')}" for name in names if getattr(self, name) is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueriesFile(FileOptions):
    """Queries of a file."""

    queries: str | None = option("--queries FILE|-", "A file with one query a line, or a table: CSV, JSON lines, …")

    @property
    def path(self) -> Path | None:
        """The file, none where nothing is given."""
        return None if self.queries is None else Path(self.queries)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenQueries(QueriesFile):
    """Queries of the command line, of a file, or of both."""

    query: tuple[str, ...] = option("--query -q TEXT", "A query to label; repeatable.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnOptions(FileOptions):
    """Which columns of rows are read."""

    label_column: tuple[str, ...] = option(
        "--label-column NAME", "A column of labels; repeatable. Default: all but the ignored ones."
    )
    ignore_columns: str = option("--ignore-columns NAME,…|all", "Columns with neither queries nor labels.", "")

    @property
    def columns(self) -> LabelledColumns:
        """The columns that are read."""
        ignored = tuple(name.strip() for name in self.ignore_columns.split(",") if name.strip())
        own = dataclasses.asdict(self.reading)
        return LabelledColumns(**own, labels=self.label_column, ignored=ignored)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOptions(ColumnOptions):
    """How labelled queries are read."""

    skip_bad: bool = option(
        "--skip-bad", "Skip and count rows that cannot be used, instead of refusing the data.", False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledRows(RowOptions):
    """Labelled queries."""

    data: Path = option("--data -d FILE", "Labelled queries, JSON lines or CSV.", REQUIRED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """A configuration, and what overrides it."""

    config: Path | None = option(
        "--config -c FILE|NAME",
        "The configuration (prompts, labels, model, runtime): a YAML file, or one that comes with the package: "
        f"{', '.join(config_names())}.",
    )
    model: str | None = overriding(
        "model.path",
        "--model -m FILE|ollama:NAME[:TAG]|package:NAME",
        "a GGUF file, a model in Ollama's store or in a Python package",
    )
    hf_repo: str | None = overriding(
        "model.hf_repo", "--hf-repo -hf USER/REPO[@REVISION][:QUANT]", "a model on the Hugging Face hub"
    )
    offline: bool = option("--offline", "Download nothing: take models of the hub from the local cache.", False)
    state_cache: bool | None = overriding("runtime.state_cache", "--state-cache/--no-state-cache")
    try_model: bool | None = overriding("runtime.try_model", "--try-model/--no-try-model")
    n_gpu_layers: str | None = overriding("runtime.n_gpu_layers", "--n-gpu-layers -ngl")
    n_threads: str | None = overriding("runtime.n_threads", "--threads -t")
    max_query_tokens: str | None = overriding("runtime.max_query_tokens", "--max-query-tokens")
    long_queries: str | None = overriding("runtime.long_queries", "--long-queries", "what is done with longer queries")

    def settings(self, path: Path | None = None) -> Config:
        """The configuration of a path, else the given one, with what the options override. Raises ConfigError."""
        from ..config.load import load_config  # see app.py for why here

        only_one(model=self.model, hf_repo=self.hf_repo)
        config = load_config(path or self.config or DEFAULT_CONFIG)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None and "key" in field.metadata:
                try:
                    config = _overridden(config, field.metadata["key"], value)
                except ConfigError as e:
                    raise ConfigError(f"{field.metadata['name']}: {str(e).partition(': ')[2]}") from None
        return config


def _overridden(config: Config, key: str, value: str | Path | bool) -> Config:
    """The configuration with another value of a key, that of `prompts` for all of them."""
    from ..config.schema import ModelConfig

    room, name = key.split(".")
    is_number = room == "runtime" and isinstance(value, str) and value.isascii() and value.isdecimal()
    change: JsonObject = {name: int(value) if is_number else value}  # type: ignore[arg-type]
    if room == "prompts":
        return config.changed(prompts=tuple(prompt.changed(**change) for prompt in config.prompts))
    if room == "model":  # how messages are rendered is the prompts' matter, and stays
        kept = {key: getattr(config.model, key) for key in ("chat_template", "chat_variables")}
        return config.changed(model=ModelConfig(**kept, **change))
    return config.changed(runtime=config.runtime.changed(**change))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredModelOptions(ModelOptions):
    """The same with one scoring for all prompts."""

    scoring: str | None = overriding("prompts.scoring", "--scoring", "the scoring of every prompt")
